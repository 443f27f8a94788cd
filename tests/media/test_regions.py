"""Polygons and run lengths become masks."""

import numpy as np
import pytest

from framework.media.regions import painted

SQUARE = [[2.0, 1.0, 6.0, 1.0, 6.0, 4.0, 2.0, 4.0]]


def compressed(counts):
    """Return run lengths as COCO's compressed text."""
    text = ""
    for place, count in enumerate(counts):
        number = count - counts[place - 2] if place > 2 else count
        while True:
            bits = number & 31
            number >>= 5
            more = number != (-1 if bits & 16 else 0)
            text += chr(48 + (bits | 32 * more))
            if not more:
                break
    return text


def test_a_polygon_covers_its_pixels():
    mask = painted([(SQUARE, 1)], 6, 8)[0]
    assert mask[1:4, 2:6].all()
    assert mask.sum() <= 4 * 5  # at most a pixel more at each border


def test_run_lengths_go_down_the_columns():
    counts = [1, 2, 3, 1, 5]
    expected = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    for form in (counts, compressed(counts)):
        region = {"size": [3, 4], "counts": form}
        assert (painted([(region, 1)], 3, 4) == expected).all()


@pytest.mark.parametrize(
    "region",
    [
        {"size": [3, 4], "counts": [1, 2]},
        {"size": [3, 4], "counts": [13, -1]},
        {"size": [3, 4], "counts": "\u20ac"},
        {"size": [3, 4], "counts": "o" * 100},
        [[1, 2, 3, 4, 5]],
        [[0, 0, 1, float("inf"), 2, 2]],
        None,
    ],
    ids=range(7),
)
def test_values_that_are_no_region_are_refused(region):
    with pytest.raises(ValueError):  # noqa: PT011
        painted([(region, 1)], 3, 4)


def test_polygons_that_overlap_are_one_region_in_a_painting():
    squares = [[1, 1, 6, 1, 6, 6, 1, 6], [3, 3, 9, 3, 9, 9, 3, 9]]
    together, second = painted([(squares, 5)], 12, 12), painted([(squares[1:], 5)], 12, 12)
    assert (together[second == 5] == 5).all()
