import numpy as np
import pytest

from framework.contracts.records import Field
from framework.errors import ConfigError, DataError
from framework.store.kinds import checked_kinds, field_of_kind, of_kind


@pytest.mark.parametrize("given", [["boxes"], {"x": "box"}, {"x": None}, "boxes"])
def test_kinds_that_do_not_exist_are_refused(given):
    with pytest.raises(ConfigError, match=r"C179.*input\.kinds.*boxes or points"):
        checked_kinds(given)


def test_boxes_are_rows_of_four_floats():
    boxes = of_kind([[1, 2, 3, 4]], "boxes", "x")
    assert (boxes.dtype, boxes.shape) == (np.float32, (1, 4))
    assert of_kind([], "boxes", "x").shape == (0, 4)
    assert field_of_kind(boxes, "boxes") == Field("float32", (None, 4), kind="boxes")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.ones((2, 5)), "boxes"),
        (np.array(["a"]), "boxes"),
        (np.ones((2, 4)), "points"),
        (np.array(1), "ragged"),
        (b"x", "text"),
        ("x", "bytes"),
    ],
)
def test_a_value_that_does_not_fit_its_kind_is_named(value, kind):
    with pytest.raises(DataError, match=r"D167.*here: x.*input\.kinds wants"):
        of_kind(value, kind, "here: x")
