"""Predictions in the pixels of the image that was given, instead of those that the model saw."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import IGNORE
from framework.media.scale import scale_labels


def boxes_in_image(
    boxes: Tensor, window: Sequence[int], seen: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """Return boxes in the pixels of the image, clipped to it.

    Args:
        boxes: Left, top, right and bottom in what the model saw: float [n, 4].
        window: Top, left, height and width of the part of the image that it saw.
        seen: (height, width) of what the model saw.
        size: (height, width) of the image.
    """
    top, left, height, width = window[:4]
    scale = torch.tensor([width / seen[1], height / seen[0]] * 2)
    start = torch.tensor([left, top] * 2)
    limit = torch.tensor([size[1], size[0]] * 2)
    moved = boxes.float() * scale + start
    return torch.minimum(moved.clamp_min(0), limit)


def map_in_image(numbers: np.ndarray, window: Sequence[int], size: tuple[int, int]) -> np.ndarray:
    """Return a label map of the size of its image.

    Pixels that the model did not see get ``IGNORE``.

    Args:
        numbers: What the model predicts: integers [h, w].
        window: Top, left, height and width of the part of the image that it saw.
        size: (height, width) of the image.
    """
    top, left, height, width = window[:4]
    result = np.full(size, IGNORE, numbers.dtype)
    scaled = scale_labels(numbers[None], (height, width))[0]
    result[top : top + height, left : left + width] = scaled
    return result
