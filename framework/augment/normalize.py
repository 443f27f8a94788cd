"""uint8 pixels to normalized float32, on the device: a quarter of the bytes cross the bus."""

from collections.abc import Sequence
from functools import cache
from typing import final

import torch
from torch import Tensor

from framework.batch import Batch


@cache
def _scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Made once per device: a tensor made from a list at every batch would be a synchronizing copy at every batch."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=device).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device).view(-1, 1, 1)
    return scale, shift


def normalized(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """[B, C, H, W] uint8 -> float32 ``(image / 255 - mean) / std``, per channel."""
    scale, shift = _scale_and_shift(tuple(mean), tuple(std), image.device)
    return image.to(torch.float32) * scale + shift


@final
class Normalize:
    """``field``: the image's name in the batch; ``mean`` and ``std``: per channel, or one number for all, of pixels in [0, 1]."""

    num_draws = 0

    def __init__(self, field: str, mean: Sequence[float], std: Sequence[float]) -> None:
        self.field, self.mean, self.std = field, mean, std

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        return {**batch, self.field: normalized(batch[self.field], self.mean, self.std)}
