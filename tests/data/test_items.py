"""Items of any form become records, and records a batch, with fields of any length."""

from collections import namedtuple

import numpy as np
import pytest
import torch

from framework.contracts.records import Field, Ragged
from framework.data.dataset import ItemForm, fields_of, record_of, stacked
from framework.data.fields import collated, with_nested
from framework.errors import DataError

Pair = namedtuple("Pair", "image label")  # noqa: PYI024  # as a user may write it
WAVE = torch.zeros(3)


def column(values, **form):
    """Return the field x of a batch of records that have these values."""
    records = [{"x": value} for value in values]
    return stacked(records, lambda place: f"record {place}", ItemForm(**form))["x"]


@pytest.mark.parametrize(
    ("item", "names"),
    [
        ({"image": 1, "label": 2}, None),
        (Pair(1, 2), None),
        ((1, 2), ["image", "label"]),
        ([1, 2], ["image", "label"]),
        ({"image": 1, "other": 0, "label": 2}, ["image", "label"]),
    ],
    ids=["dict", "named tuple", "tuple", "list", "larger dict"],
)
def test_an_item_of_any_form_becomes_a_record(item, names):
    assert record_of(item, names, "record 0") == {"image": 1, "label": 2}


@pytest.mark.parametrize(
    ("item", "names", "words"),
    [
        ((1, 2, 3), None, r"tuple of 3 values without names; .*fields=\[image,label,field2\]"),
        ((1, 2, 3), ["a", "b"], "has 3 values, but data.fields names 2"),
        (None, None, "is a NoneType, which has no fields"),
        (None, ["a"], "is a NoneType, which has no fields"),
        (WAVE, None, "is a Tensor, which has no fields"),
        ({"a": 1}, ["b"], "has no field 'b', only a"),
    ],
    ids=["no names", "two names", "none", "none by name", "tensor", "dict"],
)
def test_an_item_without_the_fields_is_refused(item, names, words):
    with pytest.raises(DataError, match=rf"D230\]: record 7: .*{words}"):
        record_of(item, names, "record 7")


# ---- a batch


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], torch.bool),
        ([1, 2.5], torch.float64),
        ([np.float32(1), np.float32(2)], torch.float32),
        ([np.array([1], ">i2"), np.array([2], ">i2")], torch.int16),
        ([torch.zeros(2, dtype=torch.uint8)] * 2, torch.uint8),
        ([1j, 2j], torch.complex64),
    ],
    ids=["bool", "numbers", "float32", "big endian", "tensors", "complex"],
)
def test_numbers_are_stacked(values, dtype):
    result = column(values)
    assert (result.dtype, len(result)) == (dtype, 2)
    assert result.tolist() == [torch.as_tensor(np.asarray(v).tolist()).tolist() for v in values]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (WAVE, torch.zeros(4), r"tensor of the shape \[4\], but a tensor of the shape \[3\]"),
        (np.zeros(3), np.zeros((3, 1)), r"array of the shape \[3, 1\]"),
        (1, None, "x is a NoneType, but a number"),
        (None, 1, "x is a number, but a NoneType"),
        ("a", WAVE, "x is a tensor"),
    ],
    ids=["length", "dimension", "none", "number", "tensor"],
)
def test_a_value_that_does_not_fit_names_its_record_and_the_way_out(first, second, words):
    with pytest.raises(DataError, match=rf"D232\]: record 1: .*{words}.*record 0"):
        column([first, second])


def test_items_of_other_fields_are_refused():
    words = r"D231\]: record 1: has the fields a, c, but record 0 has a, b"
    with pytest.raises(DataError, match=words):
        stacked([{"a": 1, "b": 1}, {"a": 1, "c": 1}], lambda place: f"record {place}")


# ---- fields whose arrays differ in length

SIGNAL = Field("float32", (None, 2))
TWO = Ragged(torch.arange(6.0).reshape(3, 2), torch.tensor([1, 2]))
ROWS = [np.ones((length, 2), np.float32) for length in (2, 0, 1)]


def test_arrays_are_padded_with_their_lengths_beside_them_listed_or_nested():
    padded = collated("x", SIGNAL, TWO, "pad")
    assert padded["x"].tolist() == [[[0, 1], [0, 0]], [[2, 3], [4, 5]]]
    assert padded["x_length"].tolist() == [1, 2]
    rows = [[[0, 1]], [[2, 3], [4, 5]]]
    assert [part.tolist() for part in collated("x", SIGNAL, TWO, "list")["x"]] == rows
    nested = with_nested(collated("x", SIGNAL, TWO, "nested"))["x"]
    assert nested.is_nested
    assert nested.layout == torch.jagged
    assert [part.tolist() for part in nested.unbind()] == rows


@pytest.mark.parametrize("way", ["pad", "nested", "list"])
def test_ragged_items_keep_their_rows_and_their_field_has_rows_without_a_number(way):
    form = ItemForm(ragged=["x"], way=way)
    batch = stacked([{"x": rows} for rows in ROWS], str, form)
    assert fields_of(batch, form) == {"x": Field("float32", (None, 2))}
    lengths = batch.get("x_length", [2, 0, 1])
    pairs = zip(with_nested(batch)["x"], lengths, strict=True)
    assert [(len(array[:length]), float(array.sum())) for array, length in pairs] == [
        (2, 4.0),
        (0, 0.0),
        (1, 2.0),
    ]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"y": 1}, r"D230\]: 0: has no field 'x', only y; correct data.ragged"),
        ({"x": 1}, r"D232\]: 0: x is a number, and data.ragged wants an array"),
        ({"x": "a"}, r"D232\]: 0: x is a str, and data.ragged wants an array"),
        ({"x": WAVE, "x_length": 3}, r"D231\]: 0: has a field 'x_length'"),
    ],
    ids=["missing", "number", "text", "length"],
)
def test_values_that_cannot_be_ragged_are_refused(record, words):
    with pytest.raises(DataError, match=words):
        stacked([record], str, ItemForm(ragged=["x"]))
