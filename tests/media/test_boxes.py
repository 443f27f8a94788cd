"""Boxes, points and label maps in windows of images, and back in the whole image."""

import numpy as np
import pytest
import torch

from framework.contracts.data import MIRRORED, UPSIDE_DOWN
from framework.contracts.records import IGNORE
from framework.media.boxes import boxes_in_image, map_in_image, moved_boxes, moved_points

WINDOW = [10, 20, 30, 40, 0]  # top, left, height, width, flip


def boxes(*rows, window=WINDOW, size=None):
    windows = torch.tensor([window] * len(rows))
    return moved_boxes(torch.tensor(rows, dtype=torch.float32), windows, size).tolist()


def points(*rows, window=WINDOW, size=None):
    windows = torch.tensor([window] * len(rows))
    return moved_points(torch.tensor(rows, dtype=torch.float32), windows, size).tolist()


@pytest.mark.parametrize(
    ("box", "flip", "size", "expected"),
    [
        pytest.param([25, 15, 35, 20], 0, None, [5, 5, 15, 10], id="inside"),
        pytest.param([0, 0, 30, 100], 0, None, [0, 0, 10, 30], id="clipped"),
        pytest.param([25, 15, 35, 20], 0, (60, 20), [2.5, 10, 7.5, 20], id="scaled"),
        pytest.param([25, 15, 35, 20], MIRRORED, None, [25, 5, 35, 10], id="mirrored"),
        pytest.param([25, 15, 35, 20], UPSIDE_DOWN, None, [5, 20, 15, 25], id="upside down"),
        pytest.param(
            [25, 15, 35, 20], MIRRORED | UPSIDE_DOWN, None, [25, 20, 35, 25], id="both flips"
        ),
    ],
)
def test_a_box_moves_with_its_window(box, flip, size, expected):
    assert boxes(box, window=[*WINDOW[:4], flip], size=size) == [expected]


# ---- predictions, back in the pixels of the image that was given

CUT = [10, 20, 40, 80]  # top, left, height, width
SEEN, SIZE = (20, 20), (60, 200)


def test_predicted_boxes_go_back_to_where_they_came_from_and_are_clipped():
    there = torch.tensor([[25.0, 15.0, 60.0, 45.0]])
    seen = moved_boxes(there, torch.tensor([[*CUT, 0]]), SEEN)
    assert torch.allclose(boxes_in_image(seen, CUT, SEEN, SIZE), there)
    large = torch.tensor([[-100.0, -100.0, 500.0, 500.0]])
    assert boxes_in_image(large, CUT, SEEN, SIZE).tolist() == [[0, 0, 200, 60]]


def test_a_predicted_map_has_the_size_of_its_image_and_ignores_the_outside():
    result = map_in_image(np.array([[1, 2], [3, 4]], np.uint8), CUT, SIZE)
    assert result.shape == SIZE
    assert (result[10, 20], result[49, 99]) == (1, 4)
    assert result[9, 20] == result[10, 19] == IGNORE
    assert (result != IGNORE).sum() == 40 * 80
