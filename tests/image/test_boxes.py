import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.data import MIRRORED, UPSIDE_DOWN
from framework.image.boxes import moved_boxes, moved_points

WINDOW = [10, 20, 30, 40, 0]  # top, left, height, width, flip


def boxes(*rows, window=WINDOW, size=None):
    windows = torch.tensor([window] * len(rows))
    return moved_boxes(torch.tensor(rows, dtype=torch.float32), windows, size).tolist()


def points(*rows, window=WINDOW, size=None):
    windows = torch.tensor([window] * len(rows))
    return moved_points(torch.tensor(rows, dtype=torch.float32), windows, size).tolist()


def test_a_box_inside_the_window_moves_with_it():
    assert boxes([25, 15, 35, 20]) == [[5, 5, 15, 10]]


def test_a_box_is_clipped_to_the_window():
    assert boxes([0, 0, 30, 100]) == [[0, 0, 10, 30]]


@pytest.mark.parametrize("box", [[0, 0, 5, 5], [70, 15, 90, 20], [25, 41, 30, 99]])
def test_a_box_outside_has_no_area(box):
    left, top, right, bottom = boxes(box)[0]
    assert (right - left) * (bottom - top) == 0


def test_a_box_is_scaled_with_its_window():
    assert boxes([25, 15, 35, 20], size=(60, 20)) == [[2.5, 10, 7.5, 20]]


@pytest.mark.parametrize(
    ("flip", "expected"),
    [
        (MIRRORED, [25, 5, 35, 10]),
        (UPSIDE_DOWN, [5, 20, 15, 25]),
        (MIRRORED | UPSIDE_DOWN, [25, 20, 35, 25]),
    ],
)
def test_a_box_is_flipped_with_its_window(flip, expected):
    assert boxes([25, 15, 35, 20], window=[*WINDOW[:4], flip]) == [expected]


def test_a_row_of_padding_stays_without_area():
    left, top, right, bottom = boxes([0, 0, 0, 0], window=[*WINDOW[:4], MIRRORED])[0]
    assert (right - left) * (bottom - top) == 0


def test_points_move_and_their_visibility_stays():
    assert points([25, 15, 2], [30, 40, 1]) == [[5, 5, 2], [10, 30, 1]]
    assert points([25, 15]) == [[5, 5]]


def test_a_point_outside_keeps_its_place_and_is_not_visible():
    assert points([5, 15, 2]) == [[-15, 5, 0]]


@given(
    st.lists(st.floats(0, 50, width=32), min_size=4, max_size=4),
    st.integers(0, 3),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_a_box_is_the_points_at_its_corners(corners, flip, height, width):
    left, right = sorted(corners[:2])
    top, bottom = sorted(corners[2:])
    window, size = [3, 5, height, width, flip], (17, 23)
    ends = points([left, top], [right, bottom], window=window, size=size)
    xs, ys = zip(*ends, strict=True)
    inside = [
        min(max(value, 0), limit)
        for value, limit in zip((min(xs), min(ys), max(xs), max(ys)), (23, 17) * 2, strict=True)
    ]
    assert boxes([left, top, right, bottom], window=window, size=size)[0] == pytest.approx(inside)
