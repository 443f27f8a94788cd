import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Ragged
from framework.store import gather as module
from framework.store.gather import Gather, gather_rows, merged, row_gather, taken
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
    rng = np.random.default_rng(1)
    offsets = torch.from_numpy(rng.integers(0, len(source) - num_bytes + 1, count))
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


LENGTHS = st.lists(st.integers(0, 9), max_size=12)
SOURCE = torch.arange(100, dtype=torch.uint8)


def ragged(lengths, dtype=torch.float32, rest=(2,)):
    total = sum(lengths)
    values = torch.arange(total * 2, dtype=dtype).reshape(total, *rest)
    return Ragged(values, torch.tensor(lengths, dtype=torch.int64))


def lists(value):
    return [array.tolist() for array in value.arrays()]


def pieces(starts, sizes):
    return gather_rows(SOURCE, torch.tensor(starts), torch.tensor(sizes))


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 10)), max_size=20))
def test_pieces_lie_one_after_another(places):
    starts = torch.tensor([start for start, _ in places], dtype=torch.int64)
    sizes = torch.tensor([size for _, size in places], dtype=torch.int64)
    expected = [number for start, size in places for number in range(start, start + size)]
    assert gather_rows(SOURCE, starts, sizes).tolist() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "find", lambda name: None)
        assert gather_rows(SOURCE, starts, sizes).tolist() == expected


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("starts", "sizes"), [([99], [2]), ([-1], [1]), ([101], [0]), ([0], [2**62]), ([5], [-1])]
)
def test_a_piece_outside_the_source_is_refused(monkeypatch, compiled, starts, sizes):
    if not compiled:
        monkeypatch.setattr(module, "find", lambda name: None)
    with pytest.raises((IndexError, RuntimeError)):
        pieces(starts, sizes)


@given(LENGTHS.filter(bool), st.randoms())
def test_parts_are_merged_to_the_order_of_the_batch(lengths, random):
    given_ = ragged(lengths)
    places = list(range(len(lengths)))
    random.shuffle(places)
    cut = len(places) // 2
    parts = [torch.tensor(part, dtype=torch.int64) for part in (places[:cut], places[cut:])]
    order = torch.argsort(torch.cat(parts))
    assert lists(merged([taken(given_, part) for part in parts], order)) == lists(given_)
