import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import ConfigError, DataError
from framework.store.label import class_pattern, number_classes, numbered_classes


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
