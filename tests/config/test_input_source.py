"""Batches of an input's records, in order, with or without bad items."""

import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.config.input_source import (
    PART,
    InputSource,
    ItemRange,
)
from framework.contracts.data import SourceContext
from framework.contracts.records import Chunk, Field, Manifest
from framework.errors import DataError
from framework.input.folder import FolderInput
from framework.media.decode import encode_png
from framework.order.batches import Order
from framework.transform.none import NoTransform

FIELDS = {"image": Field("uint8", (1, None, None), "image")}


class Several:
    """An input whose item n becomes n records."""

    manifest = Manifest(4, {"y": Field("int64", ())}, source="several")

    def read(self, start, stop):
        if start <= 2 < stop and self.is_bad:
            raise DataError(101, "item 2", "is bad", "repair it")
        numbers = [n for n in range(start, stop) for _ in range(n)]
        return Chunk({"y": np.array(numbers, np.int64)}, [f"{n}" for n in numbers])

    def __init__(self, is_bad=False):
        self.is_bad = is_bad

    def name(self, index):
        return f"item {index}"


def images(*bad, count=7):
    for number in range(count):
        pixels = encode_png(np.full((1, 4, 4), number, np.uint8))
        Path("f").mkdir(exist_ok=True)
        Path(f"f/{number}.png").write_bytes(b"none" if number in bad else pixels)
    return FolderInput("f", None, None, labeled=False)


def source_of(given, fields, ranges, skip=False, workers=0):
    order = partial(Order, batch_size=2)
    context = SourceContext(order, NoTransform(), training=False, num_workers=workers)
    return InputSource(given, fields, ranges, context, skip)


RANGES = [ItemRange(0, 0, 5), ItemRange(1, 5, 7)]


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_read_in_order_part_by_part(workers):
    source = source_of(images(), FIELDS, RANGES, workers=workers)
    batches = [micro.batch for micro in source.batches(0)]
    assert [batch["image"][:, 0, 0, 0].tolist() for batch in batches] == [
        [0, 1],
        [2, 3],
        [4],
        [5, 6],
    ]
    assert [batch[PART] for batch in batches] == [0, 0, 0, 1]
    assert source.parts[1].store.key(0) == "5.png"
    assert "decode" in source.stages()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_file_is_left_out_of_its_batch_alone(workers):
    source = source_of(images(0, 3), FIELDS, RANGES, skip=True, workers=workers)
    batches = [micro.batch["image"][:, 0, 0, 0].tolist() for micro in source.batches(0)]
    assert batches == [[1], [2], [4], [5, 6]]
    assert [item.item for item in source.parts[0].bad] == [0, 3]
    assert [item.error for item in source.parts[0].bad] == ["D106", "D106"]


def test_an_item_may_become_any_number_of_records():
    ranges = [ItemRange(0, 0, 1), ItemRange(1, 1, 4)]
    source = source_of(Several(), Several.manifest.fields, ranges)
    assert [micro.batch["y"].tolist() for micro in source.batches(0)] == [[1, 2], [2, 3], [3, 3]]
    assert not source.parts[0].store.manifest.num_records  # a part without records has no batch
    assert source.parts[1].item_numbers == [1, 2, 2, 3, 3, 3]
    assert source.parts[1].store.name(1) == "item 2"


def test_closing_early_leaves_no_thread():
    before = threading.active_count()
    batches = source_of(Several(), Several.manifest.fields, [ItemRange(0, 0, 4)]).batches(0)
    next(batches)
    batches.close()
    assert threading.active_count() == before


def test_the_thread_that_reads_ahead_leaves_the_cores_to_the_step():
    counts = []

    class Counting(Several):
        def read(self, start, stop):
            counts.append(torch.get_num_threads())
            return super().read(start, stop)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ranges = [ItemRange(0, 0, 2), ItemRange(1, 2, 4)]
        source = source_of(Counting(), Several.manifest.fields, ranges)
        assert len([*source.batches(0)]) == 4
    finally:
        torch.set_num_threads(before)
    assert set(counts) == {1}
