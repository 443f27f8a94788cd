"""Kinds of fields, and the numbers of classes."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Field
from framework.errors import ConfigError, DataError
from framework.store.foreign import (
    array_of_npy,
    checked_kinds,
    class_pattern,
    field_of_kind,
    number_classes,
    numbered_classes,
    of_kind,
)


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.ones((2, 3), ">i2")),
        np.array(3),
        np.empty((0, 2)),
    ],
)
def test_an_array_file_gives_its_numbers_in_our_byte_order(array):
    numbers = array_of_npy(npy(array), "x")
    assert np.array_equal(numbers, array)
    assert numbers.dtype == array.dtype.newbyteorder("=")
    assert numbers.flags.c_contiguous


@pytest.mark.parametrize(
    "array",
    [np.array([{}]), np.array(["a"]), np.zeros(2, "f8,i4"), np.array("2020-01-01", "M8[s]")],
)
def test_what_is_not_numbers_is_refused_and_nothing_unpickled(array):
    with pytest.raises(DataError, match=r"D112.*x\.npy: not plain arrays"):
        array_of_npy(npy(array), "x.npy")


def test_a_header_that_promises_more_than_there_is_takes_no_memory():
    data = npy(np.zeros(5)).replace(b"(5,), ", b"(5" + b"0" * 12 + b",),", 1)
    with pytest.raises(DataError, match="D112"):
        array_of_npy(data, "x.npy")


@pytest.mark.parametrize("given", [["boxes"], {"x": "box"}, {"x": None}, "boxes"])
def test_kinds_that_do_not_exist_are_refused(given):
    with pytest.raises(ConfigError, match=r"C179.*input\.kinds.*boxes or points"):
        checked_kinds(given)


def test_boxes_are_rows_of_four_floats():
    boxes = of_kind([[1, 2, 3, 4]], "boxes", "x")
    assert (boxes.dtype, boxes.shape) == (np.float32, (1, 4))
    assert of_kind([], "boxes", "x").shape == (0, 4)
    assert field_of_kind(boxes, "boxes") == Field("float32", (None, 4), kind="boxes")


@given(st.lists(st.text(), min_size=1))
def test_names_are_numbered_in_byte_order_whatever_theirs_is(names):
    numbers, classes = number_classes(names, None, "x")
    assert [classes[number] for number in numbers] == names
    assert number_classes(names[::-1], None, "x")[1] == classes


def test_numbers_may_be_named():
    assert numbered_classes(2, None, "x") == ["0", "1", "2"]
    assert numbered_classes(1, ["a", "b", "c"], "x") == ["a", "b", "c"]
    with pytest.raises(DataError, match=r"D161.*x: has label 3, but input.classes names 2"):
        numbered_classes(3, ["a", "b"], "x")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("(", "not a regular expression"), ("n", "0 groups"), ("(a)(b)", "2 groups")],
)
def test_a_pattern_has_one_group(pattern, words):
    with pytest.raises(ConfigError, match=rf"C160.*{words}"):
        class_pattern(pattern)
