"""Shift by padding and cropping, mirror, and normalize, in few passes over the whole batch."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.compiler import is_compiling

from framework.augment.flip import chance, words
from framework.augment.labels import inverted, moving
from framework.augment.normalize import (
    Fields,
    check_statistics,
    crop_flip,
    fields_of,
    normalized,
    scale_and_shift,
)
from framework.contracts.batch import Batch


@final
class CropFlip:
    """Random shifts and mirror images in training; normalization always.

    Label maps move with the image. The black parts of the image are ``IGNORE``.
    Source: the usual CIFAR recipe of Lee et al., "Deeply-supervised nets".

    Attributes:
        field: The image's name in the batch, or several that are changed alike.
        padding: Black pixels on each side before the crop to the old size.
        flip: Probability of a mirror image.
        mean: As in Normalize; None: pixels keep their dtype.
        std: As in Normalize, or None with ``mean``.

    """

    num_draws = 3
    exact = True

    def __init__(
        self,
        field: Fields,
        padding: int,
        flip: float,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
    ) -> None:
        check_statistics(mean, std)
        if padding < 0:
            raise ValueError(f"padding = {padding} is less than nothing")
        self.fields = fields_of(field)
        self.padding = padding
        self.flip = chance("flip", flip)
        self.mean = mean
        self.std = std
        self.labels: tuple[str, ...] = ()

    @property
    def normalized_fields(self) -> tuple[str, ...]:
        return () if self.mean is None else self.fields

    def with_labels(self, labels: Sequence[str]) -> "CropFlip":
        return moving(self, self.fields, labels)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        result = dict(batch)
        for name in self.fields:
            result[name] = self._finished(batch[name], draws)
        if draws is not None:
            for name in self.labels:
                result[name] = inverted(self._moved(inverted(batch[name]), draws))
        return result

    def _finished(self, image: Tensor, draws: Tensor | None) -> Tensor:
        if draws is not None:
            offsets, mirror = self._places(draws)
            scale, shift = scale_and_shift(image, self.mean, self.std)
            result = crop_flip(image, offsets, mirror, self.padding, scale, shift)
            if result is not None:
                return result
            image = shifted(image, offsets, mirror, self.padding)
        if self.mean is None or self.std is None:
            return image
        return normalized(image, self.mean, self.std)

    def _moved(self, labels: Tensor, draws: Tensor) -> Tensor:
        offsets, mirror = self._places(draws)
        result = crop_flip(labels, offsets, mirror, self.padding, None, None)
        return shifted(labels, offsets, mirror, self.padding) if result is None else result

    def _places(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        return (draws[:, :2] * (2 * self.padding + 1)).long(), draws[:, 2] < self.flip


def shifted(image: Tensor, offsets: Tensor, mirror: Tensor, padding: int) -> Tensor:
    """Pad, cut and mirror images; the result is contiguous.

    Each record is mirrored on its way into the padded batch, four pixels at a time. A cut is then
    a strided window of the padded memory, and one ``index_select`` copies the windows of all
    records.

    Args:
        image: [B, C, H, W] of any dtype.
        offsets: int64 [B, 2], 0 to 2 * padding: rows down, columns right.
        mirror: bool [B], which records to mirror.
        padding: Zeros on each side.

    """
    if is_compiling():
        return _gathered(image, offsets, mirror, padding)
    image = image.contiguous()
    batch_size, channels, height, width = image.shape
    source = words(image)
    unit = width // source.shape[-1]  # pixels in a word
    side = -(-padding // 4) * 4  # keeps words whole; the cut begins later by what is too much
    rows = height + 2 * padding
    columns = width + 2 * side
    padded = image.new_zeros(batch_size, channels, rows, columns)
    inner_rows = slice(padding, padding + height)
    inner_columns = slice(side // unit, (side + width) // unit)
    inside = padded.view(source.dtype)[:, :, inner_rows, inner_columns]
    torch.where(mirror.view(-1, 1, 1, 1), image.flip(-1).view(source.dtype), source, out=inside)
    # the cut comes after the mirror here, so that its column counts from the other side
    right = torch.where(mirror, 2 * padding - offsets[:, 1], offsets[:, 1])
    record = channels * rows * columns
    starts = torch.arange(side - padding, batch_size * record, record, device=image.device)
    starts = starts.add_(offsets[:, 0], alpha=columns).add_(right)
    last_pixel = ((channels - 1) * rows + height - 1) * columns + width - 1  # of a window
    windows = padded.as_strided(
        (batch_size * record - last_pixel, channels, height, width), (1, rows * columns, columns, 1)
    )
    return windows.index_select(0, starts)


def _gathered(image: Tensor, offsets: Tensor, mirror: Tensor, padding: int) -> Tensor:
    """Do the same pixel by pixel.

    That is slow with torch's operators, which read an index per pixel. Compiled, it is one kernel
    together with what comes before and after.
    """
    count, channels, height, width = image.shape
    device = image.device
    places = torch.arange(width, device=device)
    rows = torch.arange(height, device=device) + (offsets[:, :1] - padding)
    columns = torch.where(mirror.view(-1, 1), width - 1 - places, places)
    columns = columns + (offsets[:, 1:] - padding)
    rows = rows.view(-1, 1, height, 1)
    columns = columns.view(-1, 1, 1, width)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    record = torch.arange(count, device=device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=device).view(-1, 1, 1)
    pixels = image[record, channel, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return torch.where(inside, pixels, 0)
