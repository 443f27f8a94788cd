"""uint8 pixels to normalized float32, on the device: a quarter of the bytes cross the bus."""

from collections.abc import Sequence
from functools import cache
from typing import final

import torch
from torch import Tensor

from framework.batch import Batch

Fields = str | Sequence[str]  # one field of the batch, or several that are changed alike


def fields_of(field: Fields) -> tuple[str, ...]:
    """The names of a configuration's ``field``."""
    return (field,) if isinstance(field, str) else tuple(field)


def unit(image: Tensor) -> Tensor:
    """Pixels as float32 in [0, 1]: uint8 divided by 255; floats are taken to be that already."""
    return image if image.is_floating_point() else image.to(torch.float32).mul_(1 / 255)


@cache
def _scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], white: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Made once per device: a tensor made from a list at every batch would be a synchronizing copy at every batch."""
    scale = torch.tensor([1 / (white * s) for s in std], device=device).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device).view(-1, 1, 1)
    return scale, shift


def normalized(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """[B, C, H, W] uint8, or floats in [0, 1] -> float32 ``(pixel - mean) / std`` per channel, of pixels in [0, 1].

    A product, rounded, then a sum, rounded, each a kernel of its own: so the result is the same on every device. One kernel for both
    (``addcmul``, batch norm) may round once, and whether it does depends on the compiler. In place: a second pass over what the
    first has just left in the cache costs a tenth of the whole.
    """
    scale, shift = _scale_and_shift(tuple(mean), tuple(std), 1 if image.is_floating_point() else 255, image.device)
    return image.to(torch.float32, copy=True).mul_(scale).add_(shift)


def check_statistics(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    """ValueError where there is not a mean for each deviation, or a deviation is not above 0."""
    if (mean is None) != (std is None) or len(mean or ()) != len(std or ()) or min(std or [1]) <= 0:
        raise ValueError(f"mean = {mean} and std = {std} do not fit: as many of each, and std above 0")


@final
class Normalize:
    """``field``: the image's name in the batch, or several; ``mean`` and ``std``: per channel, or one for all, of pixels in [0, 1]."""

    num_draws = 0

    def __init__(self, field: Fields, mean: Sequence[float], std: Sequence[float]) -> None:
        check_statistics(mean, std)
        self.fields, self.mean, self.std = fields_of(field), mean, std

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        return {**batch, **{name: normalized(batch[name], self.mean, self.std) for name in self.fields}}
