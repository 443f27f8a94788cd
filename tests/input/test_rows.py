import numpy as np
import pytest

from framework.contracts.records import Field
from framework.errors import ConfigError, DataError
from framework.input.rows import field_of, first_fields, text_by_field

FIELDS = {"image": Field("uint8", (3, None, None), "image"), "x": Field("int64", (2,))}


@pytest.mark.parametrize("given", [None, {}, [], ["image"], "image", 3])
def test_an_option_that_maps_no_field_is_refused(given):
    with pytest.raises(ConfigError, match=r"C162.*input\.fields = .*give input\.fields=\{x: y\}"):
        text_by_field("fields", given, "{x: y}")


@pytest.mark.parametrize(
    ("value", "number"), [(b"text", 106), (b"", 106), (np.array(["a"]), 167), (None, 167)]
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
