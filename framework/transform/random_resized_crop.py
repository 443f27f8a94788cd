"""A random window of random area and aspect ratio, scaled and flipped; centered outside training.

Source: Szegedy et al., "Going deeper with convolutions" (area 8 % to 100 %, ratio 3/4 to 4/3). They
try up to ten windows until one fits; here, the only one drawn is shrunk until it fits.
"""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.data import chance
from framework.transform.flip import flip_codes
from framework.transform.resize import centered, pixels


@final
class RandomResizedCrop:
    """A random window. Images of one record and size, such as a pair, get the same window.

    Attributes:
        size: (height, width) in pixels that windows are scaled to.
        scale: Least and largest share of the area.
        ratio: Least and largest ratio of width to height.
        flip, flip_vertical: As in FlipTransform.
        antialias: As in ``contracts.data.Transform``.
    """

    num_draws = 6
    function = None

    def __init__(
        self,
        size: Sequence[int],
        scale: Sequence[float],
        ratio: Sequence[float],
        flip: float,
        flip_vertical: float,
        antialias: bool,
    ) -> None:
        self.size: tuple[int, int] | None = pixels(size)
        if not (0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]):
            what = f"scale = {list(scale)} or ratio = {list(ratio)}"
            raise ValueError(f"{what} is not [least, largest]")
        self.scale = scale
        self.log_ratio = [math.log(r) for r in ratio]
        self.flip = chance("flip", flip)
        self.flip_vertical = chance("flip_vertical", flip_vertical)
        self.antialias = antialias

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        assert self.size is not None
        if draws is None:
            return centered(sizes, self.size)
        limits, numbers = sizes.numpy(), draws.numpy().astype(np.float64)
        windows = np.empty((len(limits), 5), np.int64)
        cut = windows[:, 2:4] = self._cut(limits, numbers)
        windows[:, :2] = numbers[:, 2:4] * (limits - cut + 1)  # rounds down
        windows[:, 4] = flip_codes(draws.numpy()[:, 4:], self.flip, self.flip_vertical)
        return torch.from_numpy(windows)

    def _cut(self, limits: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return heights and widths: int64 [B, 2]. NumPy takes a third of the time of torch."""
        (least, most), (low, high) = self.scale, self.log_ratio
        area = limits.astype(np.float64).prod(1) * (least + numbers[:, 0] * (most - least))
        logarithm = torch.from_numpy(low + numbers[:, 1] * (high - low))
        ratio = logarithm.exp_().numpy()  # NumPy may round it differently
        wanted = np.stack([np.sqrt(area / ratio), np.sqrt(area * ratio)], axis=1)
        shrink = np.minimum((limits / wanted).min(1, keepdims=True), 1.0)
        return np.minimum(np.maximum(np.rint(wanted * shrink).astype(np.int64), 1), limits)
