"""A window of one size at a random place, unscaled, and flipped at random; in the middle outside training.

Padding before the crop is ``augment=crop_flip``'s: a window cannot reach beyond its image.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from framework.errors import DataError
from framework.transform.flip import chance, flip_codes
from framework.transform.resize import in_the_middle, pixels


@final
class RandomCrop:
    """``size``: (height, width) in pixels; ``flip`` and ``flip_vertical``: probabilities. Images of one size, a pair's, get one window.

    DataError D130 for an image smaller than that; where the first records are, before the first step.
    """

    antialias = True
    num_draws = 4
    function = None

    def __init__(self, size: Sequence[int], flip: float, flip_vertical: float) -> None:
        self.size: tuple[int, int] | None = pixels(size)
        self.flip, self.flip_vertical = chance("flip", flip), chance("flip_vertical", flip_vertical)

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        cut = torch.tensor([self.size]).expand_as(sizes)
        self._check(sizes, cut)
        if draws is None:
            return in_the_middle(sizes, cut)
        corner = (draws[:, :2].double() * (sizes - cut + 1)).long()
        return torch.cat(
            [corner, cut, flip_codes(draws[:, 2:], self.flip, self.flip_vertical)], dim=1
        )

    def _check(self, sizes: Tensor, cut: Tensor) -> None:
        if bool((sizes < cut).any()):
            height, width = sizes[(sizes < cut).any(1)][0].tolist()
            what = f"an image of {height} x {width} pixels is smaller than that"
            raise DataError(
                130,
                f"transform.size = {list(self.size or ())}",
                what,
                "choose transform=resize, or a smaller size",
            )
