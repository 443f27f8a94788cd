import os
from pathlib import Path

import pytest

from framework.errors import DataError
from framework.store.identity import identify


def _replaced():
    Path("y").write_bytes(b"abc")
    os.replace("y", "x")


def _rewritten():
    Path("x").write_bytes(b"abd")
    os.utime("x", ns=(1, 1))


@pytest.mark.parametrize(
    "change", [_replaced, _rewritten, lambda: Path("x").write_bytes(b"longer")]
)
def test_a_file_that_was_replaced_or_rewritten_is_another(change):
    Path("x").write_bytes(b"abc")
    before = identify("x")
    change()
    with pytest.raises(DataError, match=r"D117.*x: was replaced or rewritten"):
        identify("x", before)


def test_a_file_that_is_gone_is_named():
    with pytest.raises(DataError, match=r"D101.*gone: no such file"):
        identify("gone")
