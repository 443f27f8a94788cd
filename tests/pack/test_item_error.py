"""Errors of a preparation lead to a file."""

import pytest

from framework.errors import DataError
from framework.pack.item_error import item_error
from tests.contract.cases import MemoryInput

KEYED = DataError(106, "7: image", "is not readable", "correct it")


class _Named(MemoryInput):
    def __init__(self, name):
        super().__init__({"label": []}, {})
        self._name = name

    def name(self, index):
        return self._name


@pytest.mark.parametrize(
    ("name", "where"),
    [("a.tar: 7", "a.tar: 7: image"), ("a.csv: line 9", "a.csv: line 9: 7: image")],
)
def test_the_name_of_the_item_comes_first(name, where):
    error = item_error(KEYED, _Named(name), 0, "7")
    assert error.args == (106, where, "is not readable", "correct it")
