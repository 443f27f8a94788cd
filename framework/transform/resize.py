"""Scale to one size: the largest centered window of the target's shape, scaled. The same in training and evaluation."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor


def centered(sizes: Tensor, size: tuple[int, int]) -> Tensor:
    """The largest centered windows of ``size``'s aspect ratio: int64 [B, 5], not flipped."""
    height, width = sizes.unbind(1)
    cut_height = torch.minimum(height, (width * size[0] / size[1]).round().long()).clamp(min=1)
    cut_width = torch.minimum(width, (height * size[1] / size[0]).round().long()).clamp(min=1)
    top, left = (height - cut_height) // 2, (width - cut_width) // 2
    return torch.stack([top, left, cut_height, cut_width, torch.zeros_like(top)], dim=1)


@final
class Resize:
    """``size``: (height, width) in pixels."""

    num_draws = 0

    def __init__(self, size: Sequence[int]) -> None:
        self.size: tuple[int, int] | None = (int(size[0]), int(size[1]))

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        assert self.size is not None
        return centered(sizes, self.size)
