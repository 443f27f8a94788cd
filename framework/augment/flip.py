"""Mirror images at random, or turn them upside down; pixels keep their kind."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.compiler import is_compiling

from framework.augment.labels import moving
from framework.augment.normalize import Fields, fields_of
from framework.contracts.batch import Batch


def chance(name: str, value: float) -> float:
    """``value``, where it is a probability. ValueError where it is none."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value} is not a probability, 0 to 1")
    return value


def words(image: Tensor) -> Tensor:
    """The same memory with four uint8 pixels of a row as one int32, where rows can be cut so: moving words is four times as fast. A compiled
    kernel makes words by itself.
    """
    if is_compiling():
        return image
    fits = (
        image.dtype == torch.uint8
        and image.shape[-1] % 4 == 0
        and image.storage_offset() % 4 == 0
        and image.is_contiguous()
    )
    return image.view(torch.int32) if fits else image


def flipped(image: Tensor, chosen: Tensor, dim: int) -> Tensor:
    """[B, ...] with the ``chosen`` (bool [B]) records flipped along ``dim``."""
    image = image.contiguous()
    other = words(image.flip(dim))
    return torch.where(
        chosen.view(-1, *[1] * (image.dim() - 1)), other, words(image).view_as(other)
    ).view(image.dtype)


@final
class Flip:
    """``field``: the image's name in the batch, or several that are flipped alike; ``flip``: probability of a mirror image;
    ``flip_vertical``: of turning it upside down. Nothing outside training. Label maps are flipped with them.
    """

    num_draws = 2
    exact = True

    def __init__(self, field: Fields, flip: float, flip_vertical: float) -> None:
        self.fields, self.flip, self.flip_vertical = (
            fields_of(field),
            chance("flip", flip),
            chance("flip_vertical", flip_vertical),
        )
        self.labels: tuple[str, ...] = ()

    def with_labels(self, labels: Sequence[str]) -> "Flip":
        return moving(self, self.fields, labels)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        found = dict(batch)
        if draws is not None:
            for name in (*self.fields, *self.labels):
                found[name] = self._changed(found[name], draws)
        return found

    def _changed(self, image: Tensor, draws: Tensor) -> Tensor:
        if self.flip:
            image = flipped(image, draws[:, 0] < self.flip, -1)
        return flipped(image, draws[:, 1] < self.flip_vertical, -2) if self.flip_vertical else image
