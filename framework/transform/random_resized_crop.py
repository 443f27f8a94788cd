"""A random window of random area and aspect ratio, scaled and flipped; centered outside training.

Source: Szegedy et al., "Going deeper with convolutions" (area 8 % to 100 %, ratio 3/4 to 4/3). They
try up to ten windows until one fits; here, the only one drawn is shrunk until it fits.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from framework.contracts.data import Transform, chance
from framework.system.native import find
from framework.transform.flip import flip_codes
from framework.transform.resize import centered, pixels

OPTIONS = ctypes.c_double * 6  # native/windows.c


@final
class RandomResizedCrop(Transform):
    """A random window. Images of one record and size, such as a pair, get the same window.

    ``scale`` is the least and largest share of the area, ``ratio`` of width to height. ``flip`` and
    ``flip_vertical`` are probabilities.
    """

    num_draws = 6

    def __init__(
        self,
        size: Sequence[int],
        scale: Sequence[float],
        ratio: Sequence[float],
        flip: float,
        flip_vertical: float,
        antialias: bool,
    ) -> None:
        self._size = pixels(size)
        self.size: tuple[int, int] | None = self._size
        if not (0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]):
            what = f"scale = {list(scale)} or ratio = {list(ratio)}"
            raise ValueError(f"{what} is not [least, largest]")
        self.scale = scale
        self.log_ratio = [math.log(r) for r in ratio]
        self.flip = chance("flip", flip)
        self.flip_vertical = chance("flip_vertical", flip_vertical)
        self.antialias = antialias

    def windows(self, sizes: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        if draws is None:
            return centered(sizes, self._size)
        compiled = find("paceline_random_windows")
        if compiled is not None and sizes.stride(1) == 1 and draws.is_contiguous():
            windows = torch.empty((len(sizes), 5), dtype=torch.int64)
            places = sizes.data_ptr(), sizes.stride(0), len(sizes), draws.data_ptr()
            options = OPTIONS(*self.scale, *self.log_ratio, self.flip, self.flip_vertical)
            compiled(*places, options, windows.data_ptr())
            return windows
        (least, most), (low, high) = self.scale, self.log_ratio
        limits, numbers = sizes.numpy(), draws.numpy().astype(np.float64)
        area = limits[:, 0] * limits[:, 1] * (least + numbers[:, 0] * (most - least))
        ratio = np.exp(low + numbers[:, 1] * (high - low))
        wanted = np.sqrt(np.stack([area / ratio, area * ratio], axis=1))
        wanted *= np.minimum((limits / wanted).min(1, keepdims=True), 1.0)
        cut = np.minimum(np.maximum(np.rint(wanted).astype(np.int64), 1), limits)
        corner = (numbers[:, 2:4] * (limits - cut + 1)).astype(np.int64)
        codes = flip_codes(draws.numpy()[:, 4:], self.flip, self.flip_vertical)
        return torch.from_numpy(np.concatenate([corner, cut, codes[:, None]], axis=1))
