"""A window of each sound, at a random place in training and in the middle outside."""

from typing import final

import torch
from torch import Tensor


@final
class SoundWindow:
    """A window of ``samples``. Only the window is decoded. Images stay whole."""

    size = None
    antialias = True
    num_draws = 1
    function = None

    def __init__(self, samples: int) -> None:
        if samples < 1:
            raise ValueError(f"samples = {samples} is not at least 1")
        self.samples = samples

    def starts(self, lengths: Tensor, draws: Tensor | None) -> Tensor:
        """Return where the windows begin: int64 [B]. A shorter sound begins at 0."""
        room = (lengths - self.samples).clamp(min=0)
        if draws is None:
            return room // 2
        return (draws[:, 0].double() * (room + 1)).long()

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        zeros = torch.zeros_like(sizes)
        return torch.cat([zeros, sizes, zeros[:, :1]], dim=1)
