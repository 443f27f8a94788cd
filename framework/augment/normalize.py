"""Normalize uint8 pixels on the device, so that a quarter of the bytes cross the bus."""

from collections.abc import Sequence
from functools import cache
from math import isfinite
from typing import final

import torch
from torch import Tensor
from torch.compiler import assume_constant_result

from framework.augment.labels import leaving_alone
from framework.contracts.batch import Batch
from framework.system.native import find, num_threads

SHARED = 1 << 16  # pixels from which threads share a batch
Fields = str | Sequence[str]  # one field of the batch, or several that are changed alike


def fields_of(field: Fields) -> tuple[str, ...]:
    """Return the names that a configuration's ``field`` holds."""
    return (field,) if isinstance(field, str) else tuple(field)


def unit(image: Tensor) -> Tensor:
    """Return pixels as float32 in [0, 1]: uint8 over 255, floats as they are."""
    pixels = image.to(torch.float32)
    if image.is_floating_point():
        return pixels
    return pixels.mul_(1 / 255)


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
    white = 255
    if image.is_floating_point():
        white = 1
    return _made_once(tuple(mean), tuple(std), white, image.device)


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


def normalized(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return ``(pixel - mean) / std`` per channel as float32, for pixels in [0, 1].

    The product and the sum are kernels of their own that each round, so every device gives the
    same result. One kernel for both (``addcmul``, batch norm) may round once, depending on the
    compiler. The second pass works in place on cached memory and costs a tenth of the whole. On
    the CPU, ``native/crop_flip.c`` does uint8 and rounds alike.
    """
    scale, shift = scale_and_shift(image, mean, std)
    result = crop_flip(image, None, None, 0, scale, shift)
    if result is not None:
        return result
    assert scale is not None
    assert shift is not None
    return image.to(torch.float32, copy=True).mul_(scale).add_(shift)


def crop_flip(
    image: Tensor,
    offsets: Tensor | None,
    mirror: Tensor | None,
    padding: int,
    scale: Tensor | None,
    shift: Tensor | None,
) -> Tensor | None:
    """Cut, mirror and normalize a batch on the CPU in one pass of compiled code.

    Args:
        image: uint8 [B, C, H, W].
        offsets: int64 [B, 2], the corner of the cut out of the padded image.
        mirror: bool [B], which records to mirror.
        padding: Black pixels on each side.
        scale: Of ``scale_and_shift``; None: the result stays uint8.
        shift: Like ``scale``.

    Returns:
        The batch; None if the compiled function is missing or is not made for this input.
    """
    # The device comes first: torch's compiler cannot look into ``find``.
    if image.device.type != "cpu" or image.dtype != torch.uint8:
        return None
    compiled = find("paceline_crop_flip")
    if compiled is None:
        return None
    if image.dim() != 4 or (scale is not None and scale.numel() not in (1, image.shape[1])):
        return None
    if any(given is not None and len(given) != len(image) for given in (offsets, mirror)):
        return None  # torch says what is wrong
    image = image.contiguous()
    dtype = torch.uint8
    tables = [offsets, mirror, None, None]
    if scale is not None and shift is not None:
        dtype = torch.float32
        tables[2:] = [table.flatten().expand(image.shape[1]) for table in (scale, shift)]
    out = torch.empty(image.shape, dtype=dtype)
    held = [table if table is None else table.contiguous() for table in tables]
    pointers = [table if table is None else table.data_ptr() for table in held]
    threads = threads_for(out.numel())
    compiled(image.data_ptr(), *image.shape, padding, *pointers, out.data_ptr(), threads)
    return out


def check_statistics(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    """Raise ValueError unless there is a mean for each deviation, and deviations are above 0."""
    means = mean or ()
    deviations = std or ()
    fits = (mean is None) == (std is None) and len(means) == len(deviations)
    if not fits or any(s <= 0 for s in deviations) or not all(map(isfinite, (*means, *deviations))):
        what = f"mean = {mean} and std = {std} do not fit"
        raise ValueError(f"{what}: as many numbers of each, and std above 0")


@final
class Normalize:
    """Subtract the mean and divide by the deviation, in training and evaluation.

    ``mean`` and ``std`` hold a number per channel, or one for all, for pixels in [0, 1].
    """

    num_draws = 0
    exact = True

    def __init__(self, field: Fields, mean: Sequence[float], std: Sequence[float]) -> None:
        check_statistics(mean, std)
        self.fields = fields_of(field)
        self.mean = mean
        self.std = std

    @property
    def normalized_fields(self) -> tuple[str, ...]:
        return self.fields

    def with_labels(self, labels: Sequence[str]) -> "Normalize":
        return leaving_alone(self, labels, "normalizes")

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        images = {name: normalized(batch[name], self.mean, self.std) for name in self.fields}
        return {**batch, **images}
