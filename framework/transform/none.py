"""No change: every image as it is stored."""

from typing import final

import torch
from torch import Tensor


@final
class NoTransform:
    """The whole image, unscaled."""

    size: tuple[int, int] | None = None
    num_draws = 0

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        zeros = torch.zeros(len(sizes), 1, dtype=torch.int64)
        return torch.cat([zeros, zeros, sizes, zeros], dim=1)
