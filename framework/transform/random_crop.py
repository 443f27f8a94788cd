"""An unscaled window at a random place, flipped at random; in the middle outside training.

A window cannot reach beyond its image. ``augment=crop_flip`` can pad before it crops.
"""

from collections.abc import Sequence
from typing import final

import torch

from framework.contracts.data import Transform, chance
from framework.errors import DataError
from framework.transform.flip import flip_codes
from framework.transform.resize import in_the_middle, pixels


@final
class RandomCrop(Transform):
    """A window of ``size``. Images of one record and size, such as a pair, get the same window."""

    num_draws = 4

    def __init__(self, size: Sequence[int], flip: float, flip_vertical: float) -> None:
        self.size: tuple[int, int] | None = pixels(size)
        self.flip = chance("flip", flip)
        self.flip_vertical = chance("flip_vertical", flip_vertical)

    def windows(self, sizes: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        """Return the windows. DataError D130 for an image smaller than ``size``."""
        cut = torch.tensor([self.size]).expand_as(sizes)
        small = (sizes < cut).any(1)
        if bool(small.any()):
            height, width = sizes[small][0].tolist()
            where = f"transform.size = {list(self.size or ())}"
            what = f"an image of {height} x {width} pixels is smaller than that"
            raise DataError(130, where, what, "choose transform=resize, or a smaller size")
        if draws is None:
            return in_the_middle(sizes, cut)
        corner = (draws[:, :2].double() * (sizes - cut + 1)).long()
        flips = torch.from_numpy(flip_codes(draws.numpy()[:, 2:], self.flip, self.flip_vertical))
        return torch.cat([corner, cut, flips.unsqueeze(1)], dim=1)
