"""No change: every image as it is stored."""

from typing import final

import torch
from torch import Tensor

from framework.contracts.data import RecordFunction


def whole(sizes: Tensor) -> Tensor:
    """Return windows that are the whole images, not flipped: int64 [B, 5]."""
    zeros = torch.zeros(len(sizes), 1, dtype=torch.int64)
    return torch.cat([zeros, zeros, sizes, zeros], dim=1)


class WholeImages:
    """What the transforms that neither cut nor scale images share."""

    size: tuple[int, int] | None = None
    antialias = True
    num_draws = 0
    function: RecordFunction | None = None

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        return whole(sizes)


@final
class NoTransform(WholeImages):
    pass
