import io

import numpy as np
import pytest

from framework.errors import DataError
from framework.store.array_values import array_of_npy


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
