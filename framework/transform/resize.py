"""Scale to one size: the largest centered window of the target's shape, or the whole image. The same in training and evaluation."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from framework.transform.none import whole


def pixels(size: Sequence[int]) -> tuple[int, int]:
    """(height, width) of a configuration's ``size``. ValueError unless it is two numbers of at least 1."""
    if not hasattr(size, "__len__") or len(size) != 2 or min(size) < 1:
        raise ValueError(f"size = {size} is not [height, width] in pixels")
    return int(size[0]), int(size[1])


def centered(sizes: Tensor, size: tuple[int, int]) -> Tensor:
    """The largest centered windows of ``size``'s aspect ratio: int64 [B, 5], not flipped."""
    height, width = sizes.unbind(1)
    cut_height = torch.minimum(height, (width * size[0] / size[1]).round().long()).clamp(min=1)
    cut_width = torch.minimum(width, (height * size[1] / size[0]).round().long()).clamp(min=1)
    return in_the_middle(sizes, torch.stack([cut_height, cut_width], dim=1))


def in_the_middle(sizes: Tensor, cut: Tensor) -> Tensor:
    """Windows of ``cut`` (int64 [B, 2]: height, width) in the middle of their images: int64 [B, 5], not flipped."""
    return torch.cat(
        [(sizes - cut) // 2, cut, torch.zeros(len(sizes), 1, dtype=torch.int64)], dim=1
    )


@final
class Resize:
    """``size``: (height, width) in pixels. ``crop``: True scales the largest centered window of that shape, so that shapes stay
    true; False scales the whole image, so that nothing is lost. ``antialias``: as in ``contracts.Transform``.
    """

    num_draws = 0
    function = None

    def __init__(self, size: Sequence[int], crop: bool, antialias: bool) -> None:
        self.size: tuple[int, int] | None = pixels(size)
        self.crop, self.antialias = crop, antialias

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        assert self.size is not None
        return centered(sizes, self.size) if self.crop else whole(sizes)
