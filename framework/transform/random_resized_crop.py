"""A random window of random area and aspect ratio, scaled to one size, and flipped at random; centered outside training.

Source: Szegedy et al., "Going deeper with convolutions" (area 8 % to 100 %, ratio 3/4 to 4/3). One draw per record: instead of
trying up to ten times, a window that does not fit is shrunk until it does, keeping its ratio.
"""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from framework.transform.flip import chance, flip_codes
from framework.transform.resize import centered, pixels


@final
class RandomResizedCrop:
    """``size``: (height, width) in pixels; ``scale``: least and largest share of the area; ``ratio``: of width to height;
    ``flip`` and ``flip_vertical``: probabilities. Images of one size, a pair's, get one window.
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
            raise ValueError(
                f"scale = {list(scale)} or ratio = {list(ratio)} is not [least, largest]"
            )
        self.scale, self.log_ratio, self.antialias = scale, [math.log(r) for r in ratio], antialias
        self.flip, self.flip_vertical = chance("flip", flip), chance("flip_vertical", flip_vertical)

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        assert self.size is not None
        if draws is None:
            return centered(sizes, self.size)
        cut = self._cut(sizes, draws[:, :2].double())
        corner = (draws[:, 2:4].double() * (sizes - cut + 1)).long()
        return torch.cat(
            [corner, cut, flip_codes(draws[:, 4:], self.flip, self.flip_vertical)], dim=1
        )

    def _cut(self, sizes: Tensor, draws: Tensor) -> Tensor:
        """Heights and widths, int64 [B, 2]."""
        limit = sizes.double()
        area = limit.prod(1) * (self.scale[0] + draws[:, 0] * (self.scale[1] - self.scale[0]))
        ratio = torch.exp(self.log_ratio[0] + draws[:, 1] * (self.log_ratio[1] - self.log_ratio[0]))
        wanted = torch.stack([torch.sqrt(area / ratio), torch.sqrt(area * ratio)], dim=1)
        shrink = (limit / wanted).amin(1, keepdim=True).clamp(max=1.0)
        return torch.minimum((wanted * shrink).round().long().clamp(min=1), sizes)
