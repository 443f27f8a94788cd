"""Records for a trained model, prepared as packing prepared its training data."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from framework.config.input_source import PreparedInput, PreparedStore, preparation
from framework.contracts.records import Field, Manifest
from framework.errors import DataError
from framework.input.folder import FolderInput
from framework.media.decode import decode
from framework.pack.preparation import Preparation
from framework.store.folder_store import FolderStore

FIELDS = {"image": Field("uint8", (1, None, None), "image")}


def deep_images():
    rng = np.random.default_rng(0)
    Path("d").mkdir()
    for number in range(3):
        pixels = rng.integers(0, 65536, (9, 12 + number), dtype=np.uint16)
        cv2.imwrite(f"d/{number}.png", pixels)
    return FolderInput("d", None, None, labeled=False)


@pytest.mark.parametrize(
    ("options", "target", "shape"),
    [
        ({"encode": "png", "bit_depth": 8, "resize": 6}, "label", (6, 8)),
        ({"encode": "jpeg", "bit_depth": 8, "size": [5, 7], "quality": 80}, "label", (5, 7)),
        ({"encode": "png", "bit_depth": 8, "resize": 6}, "mask", (9, 12)),  # maps keep their size
    ],
    ids=["resized", "JPEG", "of maps"],
)
def test_images_are_prepared_as_packing_did(options, target, shape):
    source = deep_images()
    fields = {"label": Field("int64", ()), "mask": Field("uint8", (1, 9, 12), kind="labels")}
    train = Manifest(3, fields, options=options)
    prepare = preparation(source.manifest, train, scales=target != "mask")
    prepared = PreparedInput(source, prepare)
    assert (prepared.name(1), list(prepared.item_files(1))) == ("d/1.png", ["d/1.png"])
    sizes = {} if target == "mask" else options
    expected = PreparedInput(source, Preparation(**{"encode": "png", "bit_depth": 8, **sizes}))
    image, same = (given.read(0, 1).records["image"][0] for given in (prepared, expected))
    assert image == same
    assert decode(image, 1).shape == (*shape, 1)


def test_what_packing_did_not_change_is_left_as_it_is():
    given = deep_images().manifest
    assert preparation(given, Manifest(3, {}, options={"encode": "raw"}), scales=True) is None
    packed = replace(given, options={"encode": "raw"})
    assert preparation(packed, Manifest(3, {}, options={"size": [2, 2]}), scales=True) is None


def test_records_of_a_store_are_prepared_when_they_are_read():
    source = deep_images()
    train = Manifest(3, FIELDS, options={"encode": "raw", "bit_depth": 8, "size": [5, 7]})
    store = PreparedStore(FolderStore(".", None), train)
    expected = PreparedInput(source, preparation(source.manifest, train, scales=True)).read(0, 3)
    read = store.read(torch.tensor([2, 0]))["image"]
    assert [bytes(image) for image in read] == [expected.records["image"][i] for i in (2, 0)]
    Path("d/1.png").write_bytes(b"none")
    with pytest.raises(DataError, match=r"d/1\.png"):
        store.read(torch.arange(3))
