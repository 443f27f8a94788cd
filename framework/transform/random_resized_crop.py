"""A random window of random area and aspect ratio, scaled and flipped; centered outside training.

Source: Szegedy et al., "Going deeper with convolutions" (area 8 % to 100 %, ratio 3/4 to 4/3). They
try up to ten windows until one fits; here, the only one drawn is shrunk until it fits.
"""

import math
from collections.abc import Sequence
from typing import final

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
        cut = self._cut(sizes, draws[:, :2].double())
        corner = (draws[:, 2:4].double() * (sizes - cut + 1)).long()
        flips = flip_codes(draws[:, 4:], self.flip, self.flip_vertical)
        return torch.cat([corner, cut, flips], dim=1)

    def _cut(self, sizes: Tensor, draws: Tensor) -> Tensor:
        """Return heights and widths: int64 [B, 2]."""
        limit = sizes.double()
        area = limit.prod(1) * (self.scale[0] + draws[:, 0] * (self.scale[1] - self.scale[0]))
        ratio = torch.exp(self.log_ratio[0] + draws[:, 1] * (self.log_ratio[1] - self.log_ratio[0]))
        wanted = torch.stack([torch.sqrt(area / ratio), torch.sqrt(area * ratio)], dim=1)
        shrink = (limit / wanted).amin(1, keepdim=True).clamp(max=1.0)
        return torch.minimum((wanted * shrink).round().long().clamp(min=1), sizes)
