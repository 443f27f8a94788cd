import contextlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Field
from framework.errors import DataError
from framework.input.array_values import array_of_npy, chunk_of, field_of, first_fields, value_of
from tests.contract.cases import jpeg

FIELDS = {"image": Field("uint8", (3, None, None), "image"), "x": Field("int64", (2,))}
ROW = {"image": jpeg(0), "x": np.array([1, 2])}


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
    found = array_of_npy(npy(array), "x")
    assert np.array_equal(found, array)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.flags.c_contiguous


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


@pytest.mark.filterwarnings("ignore")  # numpy warns of headers as Python 2 wrote them
@given(st.integers(0, 200), st.binary(min_size=1, max_size=8))
def test_a_changed_array_file_gives_an_array_or_one_error(place, change):
    data = bytearray(npy(np.arange(9.0)))
    data[place : place + len(change)] = change
    with contextlib.suppress(DataError):  # any other exception fails
        assert array_of_npy(bytes(data), "x.npy").dtype.kind in "biufc"


def test_a_file_is_an_array_by_its_name_and_else_an_image():
    assert value_of(b"abc", "x.jpg", "x") == b"abc"
    assert value_of(npy(np.arange(2)), "x.NPY", "x").tolist() == [0, 1]


def test_a_field_is_what_the_first_value_is():
    assert field_of(jpeg(0), "x") == Field("uint8", (3, None, None), "image")
    assert field_of(np.zeros((2, 3), np.float32), "x") == Field("float32", (2, 3))


@pytest.mark.parametrize(
    ("value", "number"),
    [(b"text", 106), (b"", 106), (np.array(["a"]), 167), ("a", 167), (None, 167)],
)
def test_what_no_store_holds_is_named(value, number):
    with pytest.raises(DataError, match=f"D{number}.*here"):
        field_of(value, "here")


def test_the_first_readable_item_with_a_record_says_what_there_is():
    rows = {0: [{"x": b"broken"}], 1: [], 2: [{"x": np.array(1)}]}
    assert first_fields(3, rows.__getitem__, str) == {"x": Field("int64", ())}


@pytest.mark.parametrize(("row", "number"), [([], 110), ([{"x": b"broken"}], 106)])
def test_no_readable_item_is_an_error(row, number):
    with pytest.raises(DataError, match=f"D{number}"):
        first_fields(3, lambda _: row, str)


def test_rows_become_a_chunk():
    chunk = chunk_of([ROW, ROW], ["a", "b"], FIELDS, str)
    assert chunk.keys == ["a", "b"]
    assert chunk.records["image"] == [jpeg(0)] * 2
    assert chunk.records["x"].tolist() == [[1, 2], [1, 2]]


def test_no_rows_become_an_empty_chunk():
    chunk = chunk_of([], [], FIELDS, str)
    assert (chunk.records["image"], chunk.records["x"].shape, chunk.records["x"].dtype) == (
        [],
        (0, 2),
        np.int64,
    )


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"image": jpeg(1)},
        ROW | {"y": np.array(1)},
        ROW | {"x": np.array([1, 2, 3])},
        ROW | {"x": np.array([1.0, 2.0])},
        ROW | {"x": b"1"},
        ROW | {"x": 1},
        ROW | {"image": np.zeros(2)},
    ],
)
def test_a_record_unlike_the_first_is_named(other):
    with pytest.raises(DataError, match=r"D167.*item 1"):
        chunk_of([ROW, other], ["a", "b"], FIELDS, lambda number: f"item {number}")
