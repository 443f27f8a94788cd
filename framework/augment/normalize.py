"""Normalize uint8 pixels on the device, so that a quarter of the bytes cross the bus."""

from collections.abc import Sequence
from functools import cache
from math import isfinite
from typing import final

import torch
from torch import Tensor
from torch.compiler import assume_constant_result, is_compiling

from framework.augment.labels import leaving_alone
from framework.augment.pixels import PLAIN, PixelChange, PixelForm, form_of, laid_out, pixel_kernel
from framework.contracts.batch import Batch
from framework.contracts.data import AugmentTraits
from framework.system.native import find, num_threads

SHARED = 1 << 16  # pixels from which threads share a batch
Fields = str | Sequence[str]  # one field of the batch, or several that are changed alike


def fields_of(field: Fields) -> tuple[str, ...]:
    """Return the names that a configuration's ``field`` holds."""
    return (field,) if isinstance(field, str) else tuple(field)


def white_of(dtype: torch.dtype) -> int:
    """Return the value of white: 1 for floats, 65535 for uint16, else 255."""
    if dtype.is_floating_point:
        return 1
    if dtype == torch.uint16:
        return 65535
    return 255


def unit(image: Tensor) -> Tensor:
    """Return pixels as float32 in [0, 1]: uint8 over 255, uint16 over 65535, floats as they are."""
    pixels = image.to(torch.float32)
    if image.is_floating_point():
        return pixels
    return pixels.mul_(1 / white_of(image.dtype))


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
    return _made_once(tuple(mean), tuple(std), white_of(image.dtype), image.device)


@assume_constant_result  # in a compiled augmentation, too
def _made_once(
    mean: tuple[float, ...], std: tuple[float, ...], white: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    return _scale_and_shift(mean, std, white, device)


@cache  # a tensor made from a list would be a synchronizing copy at every batch
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], white: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    scale = [1 / (white * s) for s in std]
    shift = [-m / s for m, s in zip(mean, std, strict=True)]
    return (
        torch.tensor(scale, device=device).view(-1, 1, 1),
        torch.tensor(shift, device=device).view(-1, 1, 1),
    )


def normalized(
    image: Tensor, mean: Sequence[float], std: Sequence[float], form: PixelForm = PLAIN
) -> Tensor:
    """Return ``(pixel - mean) / std`` per channel, for pixels in [0, 1].

    The product and the sum are kernels of their own that each round, so every device gives the
    same result. One kernel for both (``addcmul``, batch norm) may round once, depending on the
    compiler. The second pass works in place on cached memory and costs a tenth of the whole.
    """
    scale, shift = scale_and_shift(image, mean, std)
    result = changed_at_once(image, PixelChange(scale=scale, shift=shift), form)
    if result is not None:
        return result
    assert scale is not None
    assert shift is not None
    return image.to(torch.float32, copy=True).mul_(scale).add_(shift).to(form.dtype)


def changed_at_once(image: Tensor, change: PixelChange, form: PixelForm = PLAIN) -> Tensor | None:
    """Cut, mirror and normalize uint8 images ([B, C, H, W]) in one pass of compiled code.

    On the CPU ``native/crop_flip.c`` does it, on a GPU a Triton kernel. None if that is missing or
    is not made for this input. The numbers are those of torch's operators.
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
class Normalize(AugmentTraits):
    """Subtract the mean and divide by the deviation, in training and evaluation.

    ``mean`` and ``std`` hold a number per channel, or one for all, for pixels in [0, 1]. ``dtype``
    is that of the result: float32, bfloat16 or float16.
    """

    num_draws = 0
    exact = True

    def __init__(
        self, field: Fields, mean: Sequence[float], std: Sequence[float], dtype: str = "float32"
    ) -> None:
        check_statistics(mean, std)
        self.form = form_of(dtype)
        self.fields = self.normalized_fields = fields_of(field)
        self.mean = mean
        self.std = std

    def with_labels(self, labels: Sequence[str]) -> "Normalize":
        return leaving_alone(self, labels, "normalizes")

    def with_layout(self, layout: torch.memory_format) -> "Normalize":
        return laid_out(self, layout)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        images = {
            name: normalized(batch[name], self.mean, self.std, self.form) for name in self.fields
        }
        return {**batch, **images}
