import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.store import gather as module
from framework.store.gather import Gather, row_gather
from framework.system.native import find


@pytest.fixture(params=["compiled", "torch"])
def way(request, monkeypatch):
    if request.param == "compiled" and find("paceline_gather") is None:
        pytest.skip(
            "framework/system/native is not compiled here: "
            "no C compiler when the package was installed"
        )
    if request.param == "torch":
        monkeypatch.setattr(module, "find", lambda name: None)
    return request.param


def gather(source, places, num_bytes, stride=1):
    return Gather(source, stride, (num_bytes,), torch.uint8)(places)


def _bytes(count):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, count, np.uint8))


SIZES = [(1, 5), (8, 300), (63, 1000), (3072, 257), (100_000, 9), (70_000, 4)]


def _check(num_bytes, count):
    source = _bytes(1_000_003)
    offsets = torch.from_numpy(
        np.random.default_rng(1).integers(0, len(source) - num_bytes + 1, count)
    )
    offsets[0], offsets[-1] = 0, len(source) - num_bytes
    expected = torch.stack([source[start : start + num_bytes] for start in offsets.tolist()])
    assert torch.equal(gather(source, offsets, num_bytes), expected)


@pytest.mark.parametrize(("num_bytes", "count"), SIZES)
def test_pieces_come_side_by_side_in_the_asked_order(way, num_bytes, count):
    _check(num_bytes, count)


def check_with_threads():
    for threads in (2, 3):
        torch.set_num_threads(threads)
        for num_bytes, count in SIZES:
            _check(num_bytes, count)


def test_threads_share_a_large_gather():
    """Run in a process of its own.

    A process that has used OpenMP's threads can no longer be forked, and other tests fork.
    """
    words = "from tests.store.test_gather import check_with_threads; check_with_threads()"
    subprocess.run(
        [sys.executable, "-c", words], cwd=Path(__file__).parents[2], check=True, timeout=100
    )


@pytest.mark.parametrize("offsets", [[-1], [0, 3], [1 << 62], [-(1 << 63)]])
def test_a_piece_that_is_not_all_in_the_source_is_an_error(way, offsets):
    with pytest.raises(IndexError):
        gather(_bytes(10), torch.tensor(offsets), 8)


def test_pieces_larger_than_the_source_are_an_error(way):
    with pytest.raises(IndexError):
        gather(_bytes(10), torch.tensor([0]), 11)


@pytest.mark.parametrize("num_bytes", [0, 8])
def test_no_pieces_are_no_bytes(way, num_bytes):
    assert gather(_bytes(10), torch.empty(0, dtype=torch.int64), num_bytes).shape == (0, num_bytes)


def test_every_second_offset_is_as_good_as_any(way):
    source, offsets = _bytes(100), torch.arange(20)
    assert torch.equal(gather(source, offsets[::2], 3), gather(source, offsets[::2].clone(), 3))


@given(st.integers(1, 40), st.lists(st.integers(0, 60), max_size=12))
def test_both_ways_are_one(num_bytes, starts):
    source, offsets = _bytes(100), torch.tensor(starts, dtype=torch.int64)
    assert torch.equal(
        gather(source, offsets, num_bytes), module._by_torch(source, offsets, num_bytes)
    )


def test_no_rows_are_gathered_from_an_empty_array(way):
    rows = torch.from_numpy(np.empty((0, 3), np.int64))
    assert row_gather(rows)(torch.empty(0, dtype=torch.int64)).shape == (0, 3)


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_rows_are_gathered_as_torch_would(num_rows, width, data):
    rows = torch.arange(num_rows * width).to(torch.uint8).view(num_rows, width)
    indices = torch.tensor(
        data.draw(st.lists(st.integers(0, num_rows - 1), max_size=9)), dtype=torch.int64
    )
    assert torch.equal(row_gather(rows)(indices), rows[indices])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_rows_of_an_array_are_what_indexing_gives(way, dtype):
    rows = torch.arange(60).view(10, 2, 3).to(dtype)
    gathered = row_gather(rows)(torch.tensor([9, 0, 3, 3]))
    assert torch.equal(gathered, rows[[9, 0, 3, 3]])
    assert gathered.dtype == dtype
    for bad in (-1, 10, 1 << 61):
        with pytest.raises(IndexError):
            row_gather(rows)(torch.tensor([bad]))
