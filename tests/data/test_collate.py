import pytest
import torch

from framework.contracts.records import Field, Ragged
from framework.data.collate import Padding, collated, length_name, with_nested
from framework.store.columns import joined

SIGNAL = Field("float32", (None, 2))
TEXT = Field("uint8", (None,), kind="text")
TWO = Ragged(torch.arange(6.0).reshape(3, 2), torch.tensor([1, 2]))
WORDS = Ragged(torch.tensor(list(b"ab\xc3\xbc"), dtype=torch.uint8), torch.tensor([2, 2]))


def test_padded_arrays_have_their_lengths_beside_them():
    batch = collated("x", SIGNAL, TWO, "pad")
    assert batch["x"].tolist() == [[[0, 1], [0, 0]], [[2, 3], [4, 5]]]
    assert batch["x_length"].tolist() == [1, 2]


def test_listed_arrays_are_tensors_of_their_own_lengths():
    assert [part.tolist() for part in collated("x", SIGNAL, TWO, "list")["x"]] == [
        [[0, 1]],
        [[2, 3], [4, 5]],
    ]


def test_nested_arrays_are_jagged():
    nested = with_nested(collated("x", SIGNAL, TWO, "nested"))["x"]
    assert nested.is_nested
    assert nested.layout == torch.jagged
    assert [part.tolist() for part in nested.unbind()] == [[[0, 1]], [[2, 3], [4, 5]]]


@pytest.mark.parametrize("way", ["pad", "nested", "list"])
def test_texts_are_lists_in_every_way(way):
    assert collated("x", TEXT, WORDS, way) == {"x": ["ab", "ü"]}


def test_a_text_that_is_not_utf_8_is_refused():
    with pytest.raises(UnicodeDecodeError):
        collated("x", TEXT, WORDS._replace(lengths=torch.tensor([3, 1])), "pad")


def test_slices_of_a_batch_are_joined():
    whole = joined([TWO, TWO])
    assert whole.lengths.tolist() == [1, 2, 1, 2]
    assert whole.values.shape == (6, 2)


@pytest.mark.parametrize(
    ("field", "way", "expected"),
    [(SIGNAL, "pad", "x_length"), (SIGNAL, "list", None), (TEXT, "pad", None)],
)
def test_only_padded_numbers_add_a_field(field, way, expected):
    assert length_name("x", field, way) == expected


def test_padding_is_counted_and_taken_once():
    padding = Padding({"x": "x_length"})
    padding.add(collated("x", SIGNAL, TWO, "pad"))
    padding.add(collated("x", SIGNAL, TWO, "pad"))
    assert padding.take() == {"padding": (4.0, 16.0)}
    assert padding.take() == {"padding": (0.0, 0.0)}
    assert Padding({}).take() == {}
