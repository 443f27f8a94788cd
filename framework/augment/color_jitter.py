"""Brightness, contrast, saturation and hue at random, as torchvision defines each; always in this order.

The same numbers on every device: every step is a kernel that rounds once, the mean that contrast needs is summed in integers (whose
order does not matter), and nothing is divided by a constant (CUDA would multiply by its reciprocal).
"""

from typing import final

import torch
from torch import Tensor

from framework.augment.normalize import Fields, fields_of, unit
from framework.batch import Batch
from framework.errors import ConfigError


def _blend(image: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    """``factor`` (float32 [B]) of the image and the rest of the other, within [0, 1]."""
    factor = factor.view(-1, 1, 1, 1)
    return (image * factor).add_((1 - factor) * other).clamp_(0, 1)


def _gray(image: Tensor) -> Tensor:
    """[B, 1, H, W]. Source: ITU-R BT.601's weights, as torchvision rounds them."""
    if image.shape[1] == 1:
        return image
    red, green, blue = image.split(1, 1)
    return (red * 0.2989).add_(green * 0.587).add_(blue * 0.114)


def _mean(gray: Tensor) -> Tensor:
    """[B, 1, 1, 1]: of each image, to 1/65536 per pixel, summed exactly."""
    total = (gray * 65536).round_().long().sum((1, 2, 3), keepdim=True)
    return (total.double() * (1 / (65536 * gray[0].numel()))).float()


def _turned(image: Tensor, turn: Tensor) -> Tensor:
    """The hue moved by ``turn`` (float32 [B], in turns of the color circle). Source: Smith, "Color gamut transform pairs"."""
    red, green, blue = image.unbind(1)
    value, least = image.amax(1), image.amin(1)
    spread = value - least
    safe = torch.where(spread == 0, 1.0, spread)
    saturation = spread / torch.where(spread == 0, 1.0, value)
    away_red, away_green, away_blue = ((value - channel) / safe for channel in (red, green, blue))
    sixth = torch.where(
        value == red, away_blue - away_green, torch.where(value == green, 2 + away_red - away_blue, 4 + away_green - away_red)
    )
    hue = sixth * (1 / 6) + turn.view(-1, 1, 1)
    return _rgb(hue - hue.floor(), saturation, value)


def _rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """[B, H, W] each, in [0, 1] -> [B, 3, H, W]."""
    place = hue * 6
    sector = place.floor()
    rest = place - sector
    low = value * (1 - saturation)
    falling, rising = value * (1 - saturation * rest), value * (1 - saturation * (1 - rest))
    choice = sector.long().remainder(6).unsqueeze(1)
    red = torch.stack([value, falling, low, low, rising, value], dim=1).gather(1, choice)
    green = torch.stack([rising, value, value, falling, low, low], dim=1).gather(1, choice)
    blue = torch.stack([low, low, rising, value, value, falling], dim=1).gather(1, choice)
    return torch.cat([red, green, blue], dim=1).clamp_(0, 1)


@final
class ColorJitter:
    """``brightness``, ``contrast``, ``saturation``: factors from 1 - x to 1 + x, not below 0; ``hue``: from -x to x turns of the color
    circle, x up to 0.5; 0 leaves one out. uint8, or floats in [0, 1], become float32 in [0, 1], also outside training: normalize
    after it. torchvision shuffles the order of the four for each image; here it is fixed.
    """

    num_draws = 4

    def __init__(self, field: Fields, brightness: float, contrast: float, saturation: float, hue: float) -> None:
        if min(brightness, contrast, saturation, hue) < 0 or hue > 0.5:
            raise ValueError("brightness, contrast and saturation are from 0, hue from 0 to 0.5")
        self.fields, self.brightness, self.contrast = fields_of(field), brightness, contrast
        self.saturation, self.hue = saturation, hue

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        found = dict(batch)
        for name in self.fields:
            image = unit(batch[name])
            found[name] = image if draws is None else self._changed(image, draws)
        return found

    def _changed(self, image: Tensor, draws: Tensor) -> Tensor:
        if image.shape[1] != 3 and (self.saturation or self.hue):
            what = f"would change colors, which images of {image.shape[1]} channel(s) have not"
            raise ConfigError(132, "augment.saturation, augment.hue", what, "set both to 0")
        if self.brightness:
            image = _blend(image, 0.0, _factor(draws[:, 0], self.brightness))
        if self.contrast:
            image = _blend(image, _mean(_gray(image)), _factor(draws[:, 1], self.contrast))
        if self.saturation:
            image = _blend(image, _gray(image), _factor(draws[:, 2], self.saturation))
        return _turned(image, draws[:, 3] * (2 * self.hue) - self.hue) if self.hue else image


def _factor(draws: Tensor, width: float) -> Tensor:
    """Uniform from max(0, 1 - width) to 1 + width."""
    low = max(0.0, 1 - width)
    return draws * (1 + width - low) + low
