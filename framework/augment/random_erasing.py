"""A random box of each image is painted over.

Source: Zhong et al., "Random erasing data augmentation". One draw per record: instead of trying up to ten times, a box that does not
fit is cut to the image's sides.
"""

from collections.abc import Sequence
from functools import cache
from math import inf
from typing import final

import torch
from torch import Tensor
from torch.compiler import assume_constant_result

from framework.augment.curve import log_uniform
from framework.augment.cutmix import inside
from framework.augment.flip import chance
from framework.augment.labels import leaving_alone
from framework.augment.normalize import Fields, fields_of
from framework.contracts.batch import Batch


@assume_constant_result  # where an augmentation is compiled, too
def _paint(value: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return _mixed(value, dtype, device)


@cache
def _mixed(value: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[C, 1, 1]; made once per device."""
    if not dtype.is_floating_point and not all(v.is_integer() and 0 <= v <= 255 for v in value):
        raise ValueError(
            f"value = {list(value)} is no pixel from 0 to 255, and these are not normalized"
        )
    return torch.tensor(value, device=device).to(dtype).view(-1, 1, 1)


@final
class RandomErasing:
    """``field``: the image's name in the batch, or several with one box; ``probability``: of a box; ``scale``: its least and largest
    share of the area; ``ratio``: of its height to its width; ``value``: what is painted, per channel or one for all, of pixels as they
    are there: 0 to 255 before Normalize, where 0 is black; around 0 after it, where 0 is the mean. Nothing outside training. Label maps
    stay: what was there is still to be found.
    """

    num_draws = 5
    exact = True

    def __init__(
        self,
        field: Fields,
        probability: float,
        scale: Sequence[float],
        ratio: Sequence[float],
        value: Sequence[float],
    ) -> None:
        if not (
            len(scale) == len(ratio) == 2
            and 0 < scale[0] <= scale[1] <= 1
            and 0 < ratio[0] <= ratio[1] < inf
        ):
            raise ValueError(
                f"scale = {list(scale)} or ratio = {list(ratio)} is not [least, largest]"
            )
        self.fields, self.probability, self.scale = (
            fields_of(field),
            chance("probability", probability),
            scale,
        )
        self.curve, self.value = log_uniform(*ratio), tuple(float(v) for v in value)

    def with_labels(self, labels: Sequence[str]) -> "RandomErasing":
        return leaving_alone(self, self.fields, labels, "paints over")

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        found = dict(batch)
        if draws is None:
            return found
        for name in self.fields:
            image = found[name]
            box = self._box(draws, *image.shape[-2:])
            found[name] = torch.where(box, _paint(self.value, image.dtype, image.device), image)
        return found

    def _box(self, draws: Tensor, height: int, width: int) -> Tensor:
        """What is painted over: bool [B, 1, height, width]."""
        share, ratio = (
            draws[:, 1] * (self.scale[1] - self.scale[0]) + self.scale[0],
            self.curve(draws[:, 2]),
        )
        area = share * (height * width)
        tall = (area * ratio).sqrt().round().long().clamp(1, height)
        wide = (area / ratio).sqrt().round().long().clamp(1, width)
        tall = torch.where(draws[:, 0] < self.probability, tall, 0)
        top, left = (
            (draws[:, 3] * (height - tall + 1)).long(),
            (draws[:, 4] * (width - wide + 1)).long(),
        )
        rows, columns = inside(top, top + tall, height), inside(left, left + wide, width)
        return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)
