"""The middle of the image, alike in training and evaluation.

Scaling and cutting are one scaled window, so that a decoder need not decode the rest.
"""

from collections.abc import Sequence
from typing import final

import torch

from framework.contracts.data import Transform
from framework.transform.resize import in_the_middle, pixels


@final
class CenterCrop(Transform):
    """A window of ``size``, (height, width), after the shorter side is scaled to ``resize``."""

    def __init__(self, size: Sequence[int], resize: int, antialias: bool) -> None:
        self.size: tuple[int, int] | None = pixels(size)
        self.resize = resize
        self.antialias = antialias
        if resize < max(self.size):
            raise ValueError(f"resize = {resize} leaves images smaller than size = {list(size)}")

    def windows(self, sizes: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        shorter = sizes.amin(1, keepdim=True)
        cut = (shorter * torch.tensor(self.size) / self.resize).round().long().clamp(min=1)
        return in_the_middle(sizes, torch.minimum(cut, sizes))
