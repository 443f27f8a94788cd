"""Normalize uint8 pixels on the device, so that a quarter of the bytes cross the bus."""

from collections.abc import Sequence
from functools import cache
from math import isfinite
from typing import final

import torch
from torch import Tensor
from torch.compiler import assume_constant_result, is_compiling

from framework.augment import pixels
from framework.augment.pixels import PLAIN, PixelAugment, PixelChange, PixelForm, pixel_kernel
from framework.contracts.batch import Batch
from framework.system.native import find, num_threads

SHARED = 1 << 16  # pixels from which threads share a batch


def threads_for(pixels: int) -> int:
    """Return the number of threads that share a call of a compiled function."""
    if pixels < SHARED:
        return 1
    return num_threads()


def scale_and_shift(
    image: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return the factors on ``image``'s values, and what is then added: float32 [1 or C, 1, 1]."""
    if mean is None or std is None:
        return None, None
    return _made_once(tuple(mean), tuple(std), pixels.white_of(image.dtype), image.device)


@assume_constant_result  # in a compiled augmentation, too
def _made_once(
    mean: tuple[float, ...], std: tuple[float, ...], white: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    return _scale_and_shift(mean, std, white, device)


@cache  # a tensor made from a list would be a synchronizing copy at every batch
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], white: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    scale = torch.tensor([1 / (white * s) for s in std], device=device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
    return scale.view(-1, 1, 1), shift.view(-1, 1, 1)


def normalized(
    image: Tensor, mean: Sequence[float], std: Sequence[float], form: PixelForm = PLAIN
) -> Tensor:
    """Return ``(pixel - mean) / std`` per channel, for pixels in [0, 1].

    The product and the sum round separately, so every device gives the same result.
    """
    scale, shift = scale_and_shift(image, mean, std)
    result = changed_at_once(image, PixelChange(scale=scale, shift=shift), form)
    if result is not None:
        return result
    assert scale is not None
    assert shift is not None
    return image.to(torch.float32, copy=True).mul_(scale).add_(shift).to(form.dtype)


def changed_at_once(image: Tensor, change: PixelChange, form: PixelForm = PLAIN) -> Tensor | None:
    """Cut, mirror and normalize uint8 images ([B, C, H, W]) in one pass: in C, or on a GPU.

    None if compiled code is missing or is not made for this input. The numbers are the operators'.
    """
    # torch's compiler cannot look into ``find``, and makes one kernel of the operators.
    if is_compiling() or not change.fits(image):
        return None
    if image.device.type == "cuda":
        return pixel_kernel(image, change, form)
    if image.device.type != "cpu" or change.reflects:
        return None
    compiled = find("paceline_crop_flip")
    if compiled is None:
        return None
    image = image.contiguous()
    dtype = torch.uint8
    tables = [change.offsets, change.mirror, None, None]
    if change.scale is not None and change.shift is not None:
        dtype = torch.float32
        tables[2:] = [
            table.flatten().expand(image.shape[1]) for table in (change.scale, change.shift)
        ]
    out = torch.empty(image.shape, dtype=dtype)
    held = [table if table is None else table.contiguous() for table in tables]
    pointers = [table if table is None else table.data_ptr() for table in held]
    threads = threads_for(out.numel())
    compiled(image.data_ptr(), *image.shape, change.padding, *pointers, out.data_ptr(), threads)
    return out if dtype == torch.uint8 else out.to(form.dtype)


def check_statistics(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    """Raise ValueError unless there is a mean for each deviation, and deviations are above 0."""
    means = mean or ()
    deviations = std or ()
    fits = (mean is None) == (std is None) and len(means) == len(deviations)
    if not fits or any(s <= 0 for s in deviations) or not all(map(isfinite, (*means, *deviations))):
        what = f"mean = {mean} and std = {std} do not fit"
        raise ValueError(f"{what}: as many numbers of each, and std above 0")


@final
class Normalize(PixelAugment):
    """Subtract the mean and divide by the deviation, in training and evaluation.

    ``mean`` and ``std`` hold a number per channel, or one for all, for pixels in [0, 1]. ``dtype``
    is that of the result: float32, bfloat16 or float16.
    """

    num_draws = 0
    exact = True
    recolors = "normalizes"

    def __init__(
        self,
        field: pixels.Fields,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: str = "float32",
    ) -> None:
        check_statistics(mean, std)
        self.form = pixels.form_of(dtype)
        self.fields = self.normalized_fields = pixels.fields_of(field)
        self.mean = mean
        self.std = std

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        images = {
            name: normalized(batch[name], self.mean, self.std, self.form) for name in self.fields
        }
        return {**batch, **images}
