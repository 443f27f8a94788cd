import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Ragged
from framework.store import gather_rows as module
from framework.store.gather import gather_rows, merged, taken

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


@given(LENGTHS.filter(bool), st.data())
def test_arrays_are_taken_in_any_order(lengths, data):
    places = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9))
    given_ = ragged(lengths)
    expected = [lists(given_)[place] for place in places]
    assert lists(taken(given_, torch.tensor(places, dtype=torch.int64))) == expected


@given(LENGTHS.filter(bool), st.randoms())
def test_parts_are_merged_to_the_order_of_the_batch(lengths, random):
    given_ = ragged(lengths)
    places = list(range(len(lengths)))
    random.shuffle(places)
    cut = len(places) // 2
    parts = [
        (
            torch.tensor(part, dtype=torch.int64),
            taken(given_, torch.tensor(part, dtype=torch.int64)),
        )
        for part in (places[:cut], places[cut:])
    ]
    assert lists(merged(parts)) == lists(given_)
