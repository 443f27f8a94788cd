"""``data=folder`` reads image files where they lie."""

from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import torch

from framework.data.folder import folder_source
from tests.conftest import make_context


def write_images(folder: str, count: int) -> None:
    for number in range(count):
        path = Path(folder, "ab"[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((4, 4, 3), number, np.uint8))


def labels(**options):
    context = make_context(batch_size=4, training=False)
    with closing(folder_source("images", context=context, **options)) as source:
        return torch.cat([micro.batch["label"] for micro in source.batches(0)]).tolist()


def test_each_subfolder_is_a_class():
    write_images("images", 6)
    assert labels() == [0, 0, 0, 1, 1, 1]


def test_links_are_followed_below_the_folder_that_the_user_names():
    write_images("elsewhere", 2)
    write_images("images", 2)
    Path("images/a/linked.png").symlink_to(Path("elsewhere/a/0.png").absolute())
    assert labels() == [0, 1]
    assert labels(follow_links=".") == [0, 0, 1]
