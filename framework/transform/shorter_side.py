"""The shorter side scaled to a length. The longer one follows, so a crop must come after it."""

from typing import final

import torch

from framework.contracts.data import Transform


@final
class ShorterSide(Transform):
    """A step of ``transform=compose``: ``length`` is that of the shorter side, in pixels."""

    scales = True

    def __init__(self, length: int, antialias: bool) -> None:
        if length < 1:
            raise ValueError(f"length = {length} is not a number of pixels")
        self.length = length
        self.antialias = antialias

    def scaled(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return what images of ``sizes`` (height, width) are scaled to: int64 [B, 2]."""
        shorter = sizes.amin(1, keepdim=True)
        return torch.div(2 * sizes * self.length + shorter, 2 * shorter, rounding_mode="floor")
