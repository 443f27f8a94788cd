"""Random shift by padding and cropping, random mirror, then normalize: few passes over the whole batch, one draw per record."""

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


def shifted(image: Tensor, offsets: Tensor, mirror: Tensor, padding: int) -> Tensor:
    """[B, C, H, W] with ``padding`` zeros on each side, cut at ``offsets`` (int64 [B, 2], 0 to 2 * padding: rows down, columns right)
    to the old size, and mirrored where ``mirror`` (bool [B]) says. Any dtype; the result lies in one piece.

    A record is mirrored on its way into the padded batch, four pixels at a time; then a cut is one strided window of the padded
    batch's memory, given by where it starts, and the windows of all records are copied by one ``index_select``.
    """
    if is_compiling():
        return _gathered(image, offsets, mirror, padding)
    image = image.contiguous()
    batch_size, channels, height, width = image.shape
    source = words(image)
    side = (
        -(-padding // 4) * 4
    )  # so that words stay whole; the cut begins later by what is too much
    rows, columns = height + 2 * padding, width + 2 * side
    padded = image.new_zeros(batch_size, channels, rows, columns)
    unit = width // source.shape[-1]  # pixels in a word
    inside = padded.view(source.dtype)[
        :, :, padding : padding + height, side // unit : (side + width) // unit
    ]
    torch.where(mirror.view(-1, 1, 1, 1), image.flip(-1).view(source.dtype), source, out=inside)
    right = torch.where(
        mirror, 2 * padding - offsets[:, 1], offsets[:, 1]
    )  # cut and mirror, the other way round
    record = channels * rows * columns
    starts = torch.arange(side - padding, batch_size * record, record, device=image.device)
    starts = starts.add_(offsets[:, 0], alpha=columns).add_(right)
    last = ((channels - 1) * rows + height - 1) * columns + width - 1  # a window's last pixel
    windows = padded.as_strided(
        (batch_size * record - last, channels, height, width), (1, rows * columns, columns, 1)
    )
    return windows.index_select(0, starts)


def _gathered(image: Tensor, offsets: Tensor, mirror: Tensor, padding: int) -> Tensor:
    """The same, each pixel by its place: slow as operators of torch's, which pass over an index per pixel; compiled it is one kernel, with what
    comes before and after.
    """
    height, width = image.shape[2:]
    rows = torch.arange(height, device=image.device) + (offsets[:, :1] - padding)
    places = torch.arange(width, device=image.device)
    columns = torch.where(mirror.view(-1, 1), width - 1 - places, places) + (
        offsets[:, 1:] - padding
    )
    rows, columns = rows.view(-1, 1, height, 1), columns.view(-1, 1, 1, width)
    there = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    record, channel = (
        torch.arange(n, device=image.device).view(shape)
        for n, shape in zip(image.shape, ((-1, 1, 1, 1), (-1, 1, 1)), strict=False)
    )
    found = image[record, channel, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return torch.where(there, found, 0)


@final
class CropFlip:
    """``field``: the image's name in the batch, or several that are changed alike; ``padding``: black pixels on each side before the
    crop to the old size; ``flip``: probability of a mirror; ``mean`` and ``std``: as in Normalize, or None: pixels keep their kind.

    Outside training it only normalizes. Label maps move with the image, and are IGNORE where it is black. Source: the usual CIFAR recipe of Lee et al., "Deeply-supervised nets".
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
        self.fields, self.padding, self.flip, self.mean, self.std = (
            fields_of(field),
            padding,
            chance("flip", flip),
            mean,
            std,
        )
        self.labels: tuple[str, ...] = ()

    def with_labels(self, labels: Sequence[str]) -> "CropFlip":
        return moving(self, self.fields, labels)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        found = {**batch, **{name: self._finished(batch[name], draws) for name in self.fields}}
        if draws is not None:
            found |= {name: self._moved(batch[name], draws) for name in self.labels}
        return found

    def _moved(self, labels: Tensor, draws: Tensor) -> Tensor:
        offsets, mirror = self._places(draws)
        values = inverted(labels)
        found = crop_flip(values, offsets, mirror, self.padding, None, None)
        return inverted(shifted(values, offsets, mirror, self.padding) if found is None else found)

    def _places(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        return (draws[:, :2] * (2 * self.padding + 1)).long(), draws[:, 2] < self.flip

    def _finished(self, image: Tensor, draws: Tensor | None) -> Tensor:
        if draws is not None:
            offsets, mirror = self._places(draws)
            statistics = scale_and_shift(image, self.mean, self.std)
            found = crop_flip(image, offsets, mirror, self.padding, *statistics)
            if found is not None:
                return found
            image = shifted(image, offsets, mirror, self.padding)
        return (
            image
            if self.mean is None or self.std is None
            else normalized(image, self.mean, self.std)
        )
