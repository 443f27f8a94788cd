"""Paint over a random box of each image. Source: Zhong et al., "Random erasing".

They try up to ten boxes until one fits; here, the only box drawn is cut to the image's sides.
"""

from collections.abc import Sequence
from functools import cache
from math import inf, log
from typing import final

import torch
from torch import Tensor

from framework.augment.cutmix import inside
from framework.augment.mixup import POINTS, QuantileCurve
from framework.augment.normalize import Fields, PixelAugment, check_pictures, fields_of, white_of
from framework.contracts.batch import Batch
from framework.contracts.data import chance


@final
class RandomErasing(PixelAugment):
    """Painted boxes in training. Label maps stay: what was there is still to be predicted.

    ``scale`` is [least, largest] share of the area, and ``ratio`` that of height to width.
    ``value`` is the paint, per channel or one for all, in the range of the pixels: 0 is black, and
    white is 255 (of uint16: 65535) as stored, or 1 after ColorJitter, Mixup or Kornia. After
    normalizing, 0 is the mean.
    """

    num_draws = 5
    exact = True
    recolors = "paints over"

    def __init__(
        self,
        field: Fields,
        probability: float,
        scale: Sequence[float],
        ratio: Sequence[float],
        value: Sequence[float],
    ) -> None:
        is_range = len(scale) == len(ratio) == 2
        if not (is_range and 0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1] < inf):
            what = f"scale = {list(scale)} or ratio = {list(ratio)}"
            raise ValueError(f"{what} is not [least, largest]")
        self.fields = self.painted_fields = fields_of(field)
        self.probability = chance("probability", probability)
        self.scale = scale
        # The logarithm of the ratio is uniform.
        low, high = map(log, ratio)
        self.curve = QuantileCurve(torch.linspace(low, high, POINTS + 1, dtype=torch.float64).exp())
        if not value:
            raise ValueError("value = [] is no paint: give one number, or one per channel")
        self.value = tuple(float(v) for v in value)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        result = dict(batch)
        if draws is None:
            return result
        low, high = self.scale
        ratio = self.curve(draws[:, 2])
        for name in self.fields:
            image = result[name]
            check_pictures(image)
            if len(self.value) not in (1, image.shape[1]):
                what = f"value = {list(self.value)} does not fit {image.shape[1]} channel(s)"
                raise ValueError(f"{what}: give one number, or one per channel")
            height, width = image.shape[-2:]
            area = (draws[:, 1] * (high - low) + low) * (height * width)
            tall = (area * ratio).sqrt().round().long().clamp(1, height)
            wide = (area / ratio).sqrt().round().long().clamp(1, width)
            tall = torch.where(draws[:, 0] < self.probability, tall, 0)
            top = (draws[:, 3] * (height - tall + 1)).long()
            left = (draws[:, 4] * (width - wide + 1)).long()
            rows, columns = inside(top, top + tall, height), inside(left, left + wide, width)
            painted = (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)
            paint = constant_paint(self.value, image.dtype, image.device)
            result[name] = torch.where(painted, paint, image)
        return result


def constant_paint(value: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return _mixed(value, dtype, device)


@cache
def _mixed(value: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the paint as [C, 1, 1], made once per device."""
    white = white_of(dtype)
    if not dtype.is_floating_point and not all(v.is_integer() and 0 <= v <= white for v in value):
        what = f"value = {list(value)} is no pixel from 0 to {white}"
        raise ValueError(f"{what}, and these are not normalized")
    return torch.tensor(value, device=device).to(dtype).view(-1, 1, 1)
