"""Predictions in the pixels of the image that was given."""

import numpy as np
import torch

from framework.contracts.records import IGNORE
from framework.image.boxes import moved_boxes
from framework.image.map_back import boxes_in_image, map_in_image

WINDOW = [10, 20, 40, 80]  # top, left, height, width
SEEN, SIZE = (20, 20), (60, 200)


def test_boxes_go_back_to_where_they_came_from():
    boxes = torch.tensor([[25.0, 15.0, 60.0, 45.0]])
    seen = moved_boxes(boxes, torch.tensor([[*WINDOW, 0]]), SEEN)
    assert torch.allclose(boxes_in_image(seen, WINDOW, SEEN, SIZE), boxes)


def test_boxes_are_clipped_to_the_image():
    boxes = torch.tensor([[-100.0, -100.0, 500.0, 500.0]])
    assert boxes_in_image(boxes, WINDOW, SEEN, SIZE).tolist() == [[0, 0, 200, 60]]


def test_a_map_has_the_size_of_its_image_and_ignores_the_outside():
    numbers = np.array([[1, 2], [3, 4]], np.uint8)
    result = map_in_image(numbers, WINDOW, SIZE)
    assert result.shape == SIZE
    assert result[10, 20] == 1
    assert result[49, 99] == 4
    assert result[9, 20] == result[10, 19] == IGNORE
    assert (result != IGNORE).sum() == 40 * 80
