"""Mirror images at random, or turn them upside down."""

from typing import final

import torch
from torch import Tensor
from torch.compiler import is_compiling

from framework.augment.normalize import Fields, PixelAugment, fields_of
from framework.contracts.batch import Batch
from framework.contracts.data import chance


def words(image: Tensor) -> Tensor:
    """View four uint8 pixels of a row as one int32 if possible: moving words is 4 times as fast."""
    if is_compiling() or image.dtype != torch.uint8 or not image.is_contiguous():
        return image
    if image.shape[-1] % 4 or image.storage_offset() % 4:
        return image
    return viewed(image, torch.int32)


def viewed(image: Tensor, dtype: torch.dtype) -> Tensor:
    """View the rows of a contiguous image as ``dtype``, with strides that are recomputed.

    A side of 1, as of gray channels, may have any stride, with which bytes are not seen as words.
    """
    if image.dtype == dtype:
        return image
    width = image.shape[-1] * image.element_size() // dtype.itemsize
    return image.view(-1).view(dtype).view(*image.shape[:-1], width)


def flipped(image: Tensor, chosen: Tensor, dim: int) -> Tensor:
    """Flip the ``chosen`` (bool [B]) records of [B, ...] along ``dim``."""
    if image.dtype == torch.uint16:  # torch cannot flip it
        return flipped(image.view(torch.int16), chosen, dim).view(torch.uint16)
    image = image.contiguous()
    source = words(image)
    other = viewed(image.flip(dim), source.dtype)
    chosen = chosen.view(-1, *[1] * (image.dim() - 1))
    return torch.where(chosen, other, source).view(image.dtype)


@final
class Flip(PixelAugment):
    """Random mirror images, in training only. Label maps are flipped with the images.

    ``flip`` is the probability of a mirror image, ``flip_vertical`` that of an upside-down one.
    With ``alternate``, draws alternate from epoch to epoch, as ``AugmentTraits.alternating`` says.
    """

    num_draws = 2
    exact = True
    moves_pixels = True

    def __init__(
        self, field: Fields, flip: float, flip_vertical: float, alternate: bool = False
    ) -> None:
        self.fields = fields_of(field)
        self.flip = chance("flip", flip)
        self.flip_vertical = chance("flip_vertical", flip_vertical)
        self.alternating = (0, 1) if alternate else ()

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        result = dict(batch)
        if draws is None:
            return result
        for name in (*self.fields, *self.labels):
            if self.flip:
                result[name] = flipped(result[name], draws[:, 0] < self.flip, -1)
            if self.flip_vertical:
                result[name] = flipped(result[name], draws[:, 1] < self.flip_vertical, -2)
        return result
