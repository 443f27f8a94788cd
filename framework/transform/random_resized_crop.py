"""A random window of random area and aspect ratio, scaled to one size, and flipped half the time; centered outside training.

Source: Szegedy et al., "Going deeper with convolutions" (area 8 % to 100 %, ratio 3/4 to 4/3). One draw per record: instead of
trying up to ten times, a window that does not fit is shrunk until it does, keeping its ratio.
"""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from framework.transform.resize import centered


@final
class RandomResizedCrop:
    """``size``: (height, width) in pixels; ``scale``: least and largest share of the area; ``ratio``: of width to height."""

    num_draws = 5

    def __init__(self, size: Sequence[int], scale: Sequence[float], ratio: Sequence[float], flip: float) -> None:
        self.size: tuple[int, int] | None = (int(size[0]), int(size[1]))
        self.scale, self.log_ratio, self.flip = scale, [math.log(r) for r in ratio], flip

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        assert self.size is not None
        if draws is None:
            return centered(sizes, self.size)
        area_draw, ratio_draw, top_draw, left_draw, flip_draw = draws.double().unbind(1)
        limit = sizes.double()
        area = limit.prod(1) * (self.scale[0] + area_draw * (self.scale[1] - self.scale[0]))
        ratio = torch.exp(self.log_ratio[0] + ratio_draw * (self.log_ratio[1] - self.log_ratio[0]))
        wanted = torch.stack([torch.sqrt(area / ratio), torch.sqrt(area * ratio)], dim=1)
        shrink = (limit / wanted).amin(1).clamp(max=1.0)
        cut = torch.minimum((wanted * shrink.unsqueeze(1)).round().long().clamp(min=1), sizes)
        corner = (torch.stack([top_draw, left_draw], dim=1) * (sizes - cut + 1)).long()
        return torch.cat([corner, cut, (flip_draw < self.flip).long().unsqueeze(1)], dim=1)
