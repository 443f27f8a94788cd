"""Shift by padding and cropping, mirror, and normalize, in few passes over the whole batch."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.compiler import is_compiling

from framework.augment import normalize as pixels
from framework.augment.flip import viewed, words
from framework.contracts.batch import Batch
from framework.contracts.data import chance
from framework.contracts.records import IGNORE

PADDING_MODES = ("zeros", "reflect")
Numbers = Sequence[float] | None


@final
class CropFlip(pixels.PixelAugment):
    """Random shifts and mirror images in training; normalization always.

    Label maps move with the image. The black parts of the image are ``IGNORE``. Source: the usual
    CIFAR recipe of Lee et al., "Deeply-supervised nets".

    Args:
        padding: Pixels on each side before the crop to the old size.
        flip: Probability of a mirror image.
        mean, std, dtype: As in Normalize; None: pixels keep their dtype.
        padding_mode: ``zeros`` (black), or ``reflect``, which mirrors the image.
        alternate: Whether draws alternate from epoch to epoch, as ``AugmentTraits`` says.
    """

    num_draws = 3
    exact = True
    moves_pixels = True

    def __init__(
        self,
        field: pixels.Fields,
        padding: int,
        flip: float,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        padding_mode: str = "zeros",
        alternate: bool = False,
        dtype: str = "float32",
    ) -> None:
        pixels.check_statistics(mean, std)
        self.form = pixels.form_of(dtype)
        if padding < 0:
            raise ValueError(f"padding = {padding} must be at least 0")
        if padding_mode not in PADDING_MODES:
            raise ValueError(f"padding_mode = {padding_mode} must be {' or '.join(PADDING_MODES)}")
        self.fields = pixels.fields_of(field)
        self.normalized_fields = () if mean is None else self.fields
        self.padding = padding
        self.flip = chance("flip", flip)
        self.mean = mean
        self.std = std
        self.reflects = padding_mode == "reflect" and padding > 0
        self.alternating = (2,) if alternate else ()

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        result = dict(batch)
        for name in self.fields:
            result[name] = self._changed(batch[name], draws, self.mean, self.std)
        if draws is not None:
            for name in self.labels:
                # Inverted, so that zeros filled in become ``IGNORE``.
                result[name] = IGNORE - self._changed(IGNORE - batch[name], draws, None, None)
        return result

    def _changed(self, image: Tensor, draws: Tensor | None, mean: Numbers, std: Numbers) -> Tensor:
        if draws is not None:
            offsets = (draws[:, :2] * (2 * self.padding + 1)).long()
            mirror = draws[:, 2] < self.flip
            scale = shift = None
            if mean is not None and std is not None:
                scale, shift = pixels.scale_and_shift(image, mean, std)
            change = pixels.PixelChange(offsets, mirror, self.padding, self.reflects, scale, shift)
            result = pixels.changed_at_once(image, change, self.form)
            if result is not None:
                return result
            image = shifted(image, offsets, mirror, self.padding, self.reflects)
        if mean is None or std is None:
            return image
        return pixels.normalized(image, mean, std, self.form)


def shifted(
    image: Tensor, offsets: Tensor, mirror: Tensor, padding: int, reflects: bool = False
) -> Tensor:
    """Pad, cut and mirror images ([B, C, H, W] of any dtype) as ``changed_at_once`` does.

    Padding that ``reflects`` leaves out the border; ValueError if it is not smaller than the image.
    Each record is mirrored on its way into the padded batch. A cut is then a strided window of the
    padded memory, and one ``index_select`` copies the windows of all records.
    """
    if image.dtype == torch.uint16:  # torch cannot flip it
        signed = shifted(image.view(torch.int16), offsets, mirror, padding, reflects)
        return signed.view(torch.uint16)
    batch_size, channels, height, width = image.shape
    if reflects and padding >= min(height, width):
        what = f"padding = {padding} cannot reflect images of {height}x{width}"
        raise ValueError(f"{what}: choose a smaller padding, or padding_mode=zeros")
    if is_compiling():
        return pixels.by_operators(image, pixels.PixelChange(offsets, mirror, padding, reflects))
    image = image.contiguous()
    side = -(-padding // 4) * 4  # keeps words whole; the cut begins later by what is too much
    stop = side + width
    source = words(image)  # uint8 pixels are mirrored and copied four at a time
    word = width // source.shape[-1]  # pixels in one
    padded = image.new_zeros(batch_size, channels, height + 2 * padding, width + 2 * side)
    inner = padded.view(source.dtype)[..., padding : padding + height, side // word : stop // word]
    mirrored = viewed(image.flip(-1), source.dtype)
    torch.where(mirror.view(-1, 1, 1, 1), mirrored, source, out=inner)
    if reflects:
        left = padded[..., side + 1 : side + 1 + padding]
        right = padded[..., stop - 1 - padding : stop - 1]
        padded[..., side - padding : side] = left.flip(-1)
        padded[..., stop : stop + padding] = right.flip(-1)
        # after the columns, so that the corners are filled, too
        padded[..., :padding, :] = padded[..., padding + 1 : 2 * padding + 1, :].flip(-2)
        padded[..., -padding:, :] = padded[..., -2 * padding - 1 : -padding - 1, :].flip(-2)
    rows, columns = padded.shape[2:]
    # the cut comes after the mirror here, so that its column counts from the other side
    begin = torch.where(mirror, 2 * padding - offsets[:, 1], offsets[:, 1])
    record = channels * rows * columns
    starts = torch.arange(side - padding, batch_size * record, record, device=image.device)
    starts = starts.add_(offsets[:, 0], alpha=columns).add_(begin)
    last_pixel = ((channels - 1) * rows + height - 1) * columns + width - 1  # of a window
    windows = padded.as_strided(
        (batch_size * record - last_pixel, channels, height, width), (1, rows * columns, columns, 1)
    )
    return windows.index_select(0, starts)
