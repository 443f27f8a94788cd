import numpy as np
import pytest

from framework.contracts.records import Field
from framework.errors import ConfigError
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
