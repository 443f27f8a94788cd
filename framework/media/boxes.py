"""Boxes and points that follow the window, size and flip of their image, and predictions back."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN
from framework.contracts.records import IGNORE
from framework.media.scale import scale_labels


def moved_boxes(boxes: Tensor, windows: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return boxes in the pixels of the image that their window becomes, clipped to it.

    Boxes are left, top, right and bottom, float32 [n, 4], and ``windows`` those of their images, as
    ``Transform.windows`` returns them. ``size`` is what windows are scaled to, if they are.
    """
    corners = boxes.view(-1, 2, 2)
    moved, limits = _moved(corners, windows.unsqueeze(1).expand(-1, 2, -1), size)
    moved = torch.minimum(moved.clamp_min(0), limits)
    return torch.cat([moved.amin(1), moved.amax(1)], dim=1)  # a flip exchanges left and right


def moved_points(points: Tensor, windows: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return points in the pixels of the image that their window becomes, as ``moved_boxes`` does.

    Points are x, y, and perhaps the visibility, float32 [n, 2 or 3], which becomes 0 outside.
    """
    moved, limits = _moved(points[:, :2], windows, size)
    outside = ((moved < 0) | (moved > limits)).any(1, keepdim=True)
    visibility = points[:, 2:].masked_fill(outside, 0)
    return torch.cat([moved, visibility], dim=1)


def boxes_in_image(
    boxes: Tensor, window: Sequence[int], seen: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """Return predicted boxes, float [n, 4], in the pixels of the image of ``size``, clipped to it.

    The model saw the ``window`` (top, left, height, width) of it, scaled to the size ``seen``.
    """
    top, left, height, width = window[:4]
    scale = torch.tensor([width / seen[1], height / seen[0]] * 2)
    start = torch.tensor([left, top] * 2)
    limit = torch.tensor([size[1], size[0]] * 2)
    moved = boxes.float() * scale + start
    return torch.minimum(moved.clamp_min(0), limit)


def map_in_image(numbers: np.ndarray, window: Sequence[int], size: tuple[int, int]) -> np.ndarray:
    """Return a predicted label map, integers [h, w], in the size of its image.

    Pixels outside the ``window`` that the model saw get ``IGNORE``.
    """
    top, left, height, width = window[:4]
    result = np.full(size, IGNORE, numbers.dtype)
    scaled = scale_labels(numbers[None], (height, width))[0]
    result[top : top + height, left : left + width] = scaled
    return result


def _moved(points: Tensor, windows: Tensor, size: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """Return points [..., 2], and the (width, height) of each one's result, both float32."""
    top, left, height, width, flip = windows.unbind(-1)
    starts = torch.stack([left, top], dim=-1).float()
    sizes = torch.stack([width, height], dim=-1).float()
    is_turned = (flip & TURNED).bool().unsqueeze(-1)
    limits = torch.where(is_turned, sizes.flip(-1), sizes)
    if size is not None:
        limits = torch.tensor([size[1], size[0]], dtype=torch.float32).expand_as(sizes)
    moved = (points - starts) * (torch.where(is_turned, limits.flip(-1), limits) / sizes)
    moved = torch.where(is_turned, moved.flip(-1), moved)
    flips = torch.stack([flip & MIRRORED, flip & UPSIDE_DOWN], dim=-1).bool()
    return torch.where(flips, limits - moved, moved), limits
