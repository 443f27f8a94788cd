"""The whole image, mirrored or turned upside down at random in training."""

from typing import final

import numpy as np
from torch import Tensor

from framework.contracts.data import MIRRORED, UPSIDE_DOWN, Transform, chance


def flip_codes(draws: np.ndarray, flip: float, flip_vertical: float) -> np.ndarray:
    """Return flip codes from draws, float32 [B, 2]: int64 [B]."""
    left, down = draws.T
    return (left < flip) * MIRRORED + (down < flip_vertical) * UPSIDE_DOWN


@final
class FlipTransform(Transform):
    """``flip``: probability of a mirror image; ``flip_vertical``: of turning it upside down."""

    num_draws = 2

    def __init__(self, flip: float, flip_vertical: float) -> None:
        self.flip = chance("flip", flip)
        self.flip_vertical = chance("flip_vertical", flip_vertical)

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        windows = super().windows(sizes, draws)
        if draws is not None:
            windows.numpy()[:, 4] = flip_codes(draws.numpy(), self.flip, self.flip_vertical)
        return windows
