"""Stores over what an input reads."""

import numpy as np
import torch

from framework.contracts.records import Chunk, Field, Manifest
from framework.store.chunk_store import ChunkStore, ItemStore

FIELDS = {
    "image": Field("uint8", (1, None, None), "image"),
    "wave": Field("float32", (None, 2)),
    "y": Field("int64", ()),
}
MANIFEST = Manifest(3, FIELDS)


class Items:
    """An input of a record per item."""

    manifest = MANIFEST

    def read(self, start, stop):
        numbers = range(start, stop)
        waves = [np.full((n, 2), n, np.float32) for n in numbers]
        images = [bytes([n]) for n in numbers]
        return Chunk(
            {"image": images, "wave": waves, "y": np.arange(start, stop)}, [str(n) for n in numbers]
        )

    def name(self, index):
        return f"item {index}"


def stores():
    whole = Items().read(2, 6)
    yield ChunkStore(whole, MANIFEST, lambda index: f"item {index + 2}")
    yield ItemStore(Items(), 2, ["2", "3", "4", "5"], MANIFEST)


def test_both_give_the_records_asked_for_in_their_order():
    for store in stores():
        for wanted in ([0, 1, 2, 3], [3, 0, 0]):
            records = store.read(torch.tensor(wanted))
            numbers = [index + 2 for index in wanted]
            assert [data[0] for data in records["image"]] == numbers
            assert records["wave"].lengths.tolist() == numbers
            assert records["wave"].values.shape == (sum(numbers), 2)
            assert records["y"].tolist() == numbers
        assert store.name(1) == "item 3"
        assert store.key(1) == "3"
        assert store.manifest.num_records == 4


def test_fields_that_the_manifest_lacks_are_left_out():
    few = Manifest(3, {"y": FIELDS["y"]})
    assert list(ItemStore(Items(), 0, ["0"], few).read(torch.tensor([0]))) == ["y"]
