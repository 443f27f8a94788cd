"""The middle of the image: its shorter side scaled to ``resize``, then ``size`` cut out. The same in training and evaluation.

Done as one window that is scaled, so that a decoder need not decode the rest.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from framework.transform.resize import in_the_middle, pixels


@final
class CenterCrop:
    """``size``: (height, width) in pixels; ``resize``: what the shorter side would be scaled to, at least as long as both."""

    num_draws = 0
    function = None

    def __init__(self, size: Sequence[int], resize: int, antialias: bool) -> None:
        self.size: tuple[int, int] | None = pixels(size)
        self.resize, self.antialias = resize, antialias
        if resize < max(self.size):
            raise ValueError(f"resize = {resize} leaves images smaller than size = {list(size)}")

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        shorter = sizes.amin(1, keepdim=True)
        cut = (shorter * torch.tensor(self.size) / self.resize).round().long().clamp(min=1)
        return in_the_middle(sizes, torch.minimum(cut, sizes))
