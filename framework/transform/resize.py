"""Scale images to one size, alike in training and evaluation."""

from collections.abc import Sequence
from typing import final

import torch

from framework.contracts.data import Transform


def pixels(size: Sequence[int]) -> tuple[int, int]:
    """Return a configuration's ``size`` as (height, width), or raise ValueError."""
    if not hasattr(size, "__len__") or len(size) != 2 or min(size) < 1:
        raise ValueError(f"size = {size} is not [height, width] in pixels")
    return int(size[0]), int(size[1])


def centered(sizes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return the largest centered windows of ``size``'s aspect ratio: int64 [B, 5]."""
    height, width = sizes.unbind(1)
    cut_height = torch.minimum(height, (width * size[0] / size[1]).round().long()).clamp(min=1)
    cut_width = torch.minimum(width, (height * size[1] / size[0]).round().long()).clamp(min=1)
    return in_the_middle(sizes, torch.stack([cut_height, cut_width], dim=1))


def in_the_middle(sizes: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    """Return centered windows of ``cut`` (int64 [B, 2]: height, width) as int64 [B, 5]."""
    unflipped = torch.zeros(len(sizes), 1, dtype=torch.int64)
    return torch.cat([(sizes - cut) // 2, cut, unflipped], dim=1)


@final
class Resize(Transform):
    """The whole image scaled to ``size``, (height, width) in pixels.

    With ``crop``, only its largest centered window of that shape, which keeps the aspect ratio.
    """

    def __init__(self, size: Sequence[int], crop: bool, antialias: bool) -> None:
        self._size = pixels(size)
        self.size: tuple[int, int] | None = self._size
        self.crop = crop
        self.antialias = antialias

    def windows(self, sizes: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        if self.crop:
            return centered(sizes, self._size)
        return super().windows(sizes, draws)
