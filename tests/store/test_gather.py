import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize("offsets", [[-1], [0, 3], [1 << 62], [-(1 << 63)]])
def test_a_piece_that_is_not_all_in_the_source_is_an_error(way, offsets):
    with pytest.raises(IndexError):
        gather(_bytes(10), torch.tensor(offsets), 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_rows_of_an_array_are_what_indexing_gives(way, dtype):
    rows = torch.arange(60).view(10, 2, 3).to(dtype)
    gathered = row_gather(rows)(torch.tensor([9, 0, 3, 3]))
    assert torch.equal(gathered, rows[[9, 0, 3, 3]])
    assert gathered.dtype == dtype
    for bad in (-1, 10, 1 << 61):
        with pytest.raises(IndexError):
            row_gather(rows)(torch.tensor([bad]))
