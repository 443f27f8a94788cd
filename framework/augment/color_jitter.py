"""Change brightness, contrast, saturation and hue at random, each as torchvision defines it.

Every device gives the same numbers: each step rounds once, the mean that contrast needs is a sum of
integers, and nothing is divided by a constant, since CUDA would multiply by its reciprocal. On the
CPU ``native/color_jitter.c`` fuses the steps and rounds alike.
"""

from collections.abc import Sequence
from math import inf
from typing import final

import torch
from torch import Tensor

from framework.augment import normalize as pixels
from framework.contracts.batch import Batch
from framework.errors import ConfigError
from framework.system.native import find

BRIGHTNESS, CONTRAST, SATURATION, HUE = 1, 2, 4, 8  # as in native/color_jitter.c


@final
class ColorJitter(pixels.PixelAugment):
    """Random colors, always changed in the same order. torchvision shuffles the order per image.

    Images, integers or floats in [0, 1], become float32 in [0, 1], outside training too. Normalize
    after it. A width x of ``brightness``, ``contrast`` or ``saturation`` means factors from 1 - x,
    but not below 0, to 1 + x; of ``hue``, at most 0.5, from -x to x turns of the color circle. A
    width of 0 leaves a change out.
    """

    num_draws = 4
    exact = True
    recolors = "changes the colors of"

    def __init__(
        self,
        field: pixels.Fields,
        brightness: float,
        contrast: float,
        saturation: float,
        hue: float,
    ) -> None:
        widths = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        for name, value in widths.items():
            if not 0 <= value < inf:
                raise ValueError(f"{name} = {value} must be a number of at least 0")
        if not 0 <= hue <= 0.5:
            raise ValueError(f"hue = {hue} must be from 0 to 0.5")
        self.fields = self.unit_fields = self.scaled_fields = pixels.fields_of(field)
        self.widths = (brightness, contrast, saturation, hue)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        result = dict(batch)
        for name in self.fields:
            result[name] = pixels.unit(batch[name])
        if draws is None:
            return result
        *widths, hue = self.widths
        factors: list[Tensor] = []
        for i, width in enumerate(widths):  # uniform, from max(0, 1 - width) to 1 + width
            low = max(0.0, 1 - width)
            factors.append(draws[:, i] * (1 + width - low) + low)
        factors.append((draws[:, 3] * (2 * hue) - hue) * 6)
        steps = sum(1 << i for i, width in enumerate(self.widths) if width)
        for name in self.fields:
            image = result[name]
            pixels.check_pictures(image)
            if image.shape[1] != 3 and steps & (SATURATION | HUE):
                what = f"cannot change colors of images with {image.shape[1]} channel(s)"
                raise ConfigError(132, "augment.saturation, augment.hue", what, "set both to 0")
            changed = _compiled(image, steps, factors)
            result[name] = _by_torch(image, steps, factors) if changed is None else changed
        return result


def _compiled(image: Tensor, steps: int, factors: Sequence[Tensor]) -> Tensor | None:
    """Do the steps in two passes in C; None if the function is not there or not made for this."""
    # The device comes first: torch's compiler cannot look into ``find``.
    if image.device.type != "cpu" or image.dtype not in (torch.uint8, torch.float32):
        return None
    function = find("paceline_color_jitter")
    if function is None or image.dim() != 4 or image.shape[1] != 3:
        return None
    image = image.contiguous()
    table = torch.stack(list(factors), 1)
    fits = table.shape == (len(image), 4) and table.dtype == torch.float32
    if not fits or table.device != image.device:
        return None  # torch says what is wrong
    out = torch.empty(image.shape)
    count, _, height, width = image.shape
    source = (image.data_ptr(), image.dtype == torch.uint8, count, height * width)
    function(*source, steps, table.data_ptr(), out.data_ptr(), pixels.threads_for(out.numel()))
    return out


def _by_torch(image: Tensor, steps: int, factors: Sequence[Tensor]) -> Tensor:
    """Do those of the four ``steps`` whose bit is set. ``factors``: float32 [B] of each."""
    brightness, contrast, saturation, sixths = factors
    if steps & BRIGHTNESS:
        image = _blend(image, 0.0, brightness)
    if steps & CONTRAST:
        gray = _gray(image)  # its mean: pixels to 1/65536, summed exactly
        total = (gray.clamp(0, 1) * 65536).round_().long().sum((1, 2, 3), keepdim=True)
        mean = (total.double() * (1 / (65536 * max(1, gray.shape[1:].numel())))).float()
        image = _blend(image, mean, contrast)
    if steps & SATURATION:
        image = _blend(image, _gray(image), saturation)
    if steps & HUE:
        # There and back in one formula. A channel is full for two sixths of the color circle, falls
        # for one, is empty for two and rises for one, a third after the last one.
        # Source: Smith, "Color gamut transform pairs".
        red, green, blue = image.split(1, 1)
        value = image.amax(1, keepdim=True)
        chroma = value - image.amin(1, keepdim=True)
        is_red = value == red
        is_green = value == green
        apart = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
        start = torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0))
        hue = apart.div_(torch.where(chroma == 0, 1.0, chroma)).add_(start)
        hue += sixths.view(-1, 1, 1, 1)
        channels: list[Tensor] = []
        for ahead in (5, 3, 1):
            place = hue + ahead  # sixths of the circle from the channel's first full one
            place = place - (place * (1 / 6)).floor_().mul_(6)
            channels.append(value - torch.minimum(place, 4 - place).clamp_(0, 1).mul_(chroma))
        image = torch.cat(channels, 1)
    return image


def _blend(image: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    """Return ``factor`` (float32 [B]) of ``image`` plus the rest of ``other``, within [0, 1]."""
    factor = factor.view(-1, 1, 1, 1)
    return (image * factor).add_((1 - factor) * other).clamp_(0, 1)


def _gray(image: Tensor) -> Tensor:
    """Return [B, 1, H, W]. Source: ITU-R BT.601's weights, as torchvision rounds them."""
    if image.shape[1] == 1:
        return image
    red, green, blue = image.split(1, 1)
    return (red * 0.2989).add_(green * 0.587).add_(blue * 0.114)
