"""Label maps, packed and trained by the command: each promise of docs/images.md."""

from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.records import IGNORE
from framework.contracts.training import Outcome
from framework.media.decode import encode_png
from framework.store.open_store import open_store
from tests.cli.command import paceline
from tests.contract.cases import label_map

PAIRS = ("pack", "input=pairs", "input.fields={image: photos, mask: masks}", "workers=0")
MARKED = (*PAIRS, "input.labels=[mask]")
CONF = {
    "model/pixel.yaml": "_target_: torch.nn.Conv2d\n"
    "in_channels: 3\nout_channels: 8\nkernel_size: 1\n",
    "objective/pixels.yaml": "_target_: tests.cli.test_label_maps.Segment\nexact: true\n",
    "recipes/seg.yaml": "# @package _global_\n"
    "defaults: [override /model: pixel, override /objective: pixels, "
    "override /augment: none, override /optim: adam]\n"
    "data: {train: x.h5, val: x.h5}\nbatch_size: 4\nepochs: 1\n",
}


class Segment:
    """Cross-entropy of each pixel; it fails if a class was invented or moved off its image."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        image, mask = batch["image"], batch["mask"]
        assert mask.dtype == torch.uint8
        assert set(mask.unique().tolist()) <= {0, 7, IGNORE}, mask.unique()
        if image.dtype == torch.uint8:  # the image's first channel is 30 times its map
            same = ((image[:, :1] > 105) == (mask == 7))[mask != IGNORE].float().mean().item()
            assert same == 1 if self.exact else same > 0.85, same
        scores = model(image.float() / 255)
        loss = nn.functional.cross_entropy(scores, mask[:, 0].long(), ignore_index=IGNORE)
        return Outcome(loss, {}, len(image))

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return new["loss"] < old["loss"]


@pytest.fixture(autouse=True)
def pictures():
    """Write photographs, their masks of classes 0 and 7, and a recipe that trains on them."""
    for folder in ("photos", "masks", *(Path("conf", path).parent for path in CONF)):
        Path(folder).mkdir(parents=True)
    for number in range(12):
        values = label_map(number, 32, 24)
        photo = np.concatenate([30 * values, 255 - 30 * values, 20 * values])
        Path(f"photos/{number:02}.png").write_bytes(encode_png(photo))
        Path(f"masks/{number:02}.png").write_bytes(encode_png(values))
    for path, text in CONF.items():
        Path("conf", path).write_text(text)


def train(*words: str) -> None:
    place = ("--config-dir", "conf", "recipes=seg", "allow_targets=[tests]", "workers.num=0")
    done = paceline("train", *place, "sink=[]", *words)
    assert done.code == 0, done.err


def packed(*words: str, path: str = "x.h5") -> None:
    done = paceline(*MARKED, f"output.path={path}", *words)
    assert done.code == 0, done.err


def stored(path: str = "x.h5") -> list[np.ndarray]:
    """Return the label maps' numbers as training sees them."""
    store = open_store(path)
    values = store.read(torch.arange(store.manifest.num_records))["mask"]
    assert store.manifest.fields["mask"].kind == "labels"
    store.close()
    if isinstance(values, torch.Tensor):
        return [*values[:, 0].numpy()]
    return [cv2.imdecode(np.frombuffer(value, np.uint8), -1) for value in values]


@pytest.mark.parametrize(
    ("encode", "transform"), [("raw", "resize"), ("png", "random_resized_crop")]
)
def test_training_scales_a_label_map_to_the_nearest_pixel(encode, transform):
    packed(f"pack.encode={encode}")
    train(f"transform={transform}", "transform.size=[40,50]", "objective.exact=false")


@pytest.mark.parametrize(
    "words",
    [
        ("transform=random_crop", "transform.size=[20,20]", "augment=flip"),
        ("augment=crop_flip", "augment.mean=null", "augment.std=null"),
        ("augment=cutmix", "augment.target=mask"),
    ],
    ids=["transform", "crops", "cutmix"],
)
def test_a_label_map_is_moved_with_its_image(words):
    packed()
    train(*words)


def test_a_recipe_may_mark_the_label_maps_it_packs():
    text = CONF["recipes/seg.yaml"]
    text = text.replace("defaults: [", "defaults: [/input@prepare.train.input: pairs, ")
    text = text.replace("data: {train: x.h5, val: x.h5}", "dataset: made\ndata: {val: null}")
    fields = "fields: {image: photos, mask: masks}"
    text += f"prepare: {{train: {{input: {{{fields}, labels: [mask]}}, pack: {{encode: raw}}}}}}\n"
    Path("conf/recipes/seg.yaml").write_text(text)
    train()
    assert len(stored("made/train.h5")) == 12
