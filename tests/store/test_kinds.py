"""Kinds of fields, and the numbers of classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Field
from framework.errors import ConfigError, DataError
from framework.store.kinds import checked_kinds, field_of_kind, of_kind
from framework.store.label import class_pattern, number_classes, numbered_classes


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
