"""uint8 pixels to normalized float32, on the device: a quarter of the bytes cross the bus."""

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
    """The names of a configuration's ``field``."""
    return (field,) if isinstance(field, str) else tuple(field)


def unit(image: Tensor) -> Tensor:
    """Pixels as float32 in [0, 1]: uint8 divided by 255; floats are taken to be that already."""
    return (
        image.to(torch.float32)
        if image.is_floating_point()
        else image.to(torch.float32).mul_(1 / 255)
    )


@assume_constant_result  # where an augmentation is compiled, too
def _made_once(
    mean: tuple[float, ...], std: tuple[float, ...], white: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    return _scale_and_shift(mean, std, white, device)


@cache
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], white: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Made once per device: a tensor made from a list at every batch would be a synchronizing copy at every batch."""
    scale = torch.tensor([1 / (white * s) for s in std], device=device).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device).view(
        -1, 1, 1
    )
    return scale, shift


def scale_and_shift(
    image: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """What ``image``'s values are multiplied by, and what is then added: float32 [1 or C, 1, 1]."""
    if mean is None or std is None:
        return None, None
    return _made_once(
        tuple(mean), tuple(std), 1 if image.is_floating_point() else 255, image.device
    )


def normalized(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """[B, C, H, W] uint8, or floats in [0, 1] -> float32 ``(pixel - mean) / std`` per channel, of pixels in [0, 1].

    A product, rounded, then a sum, rounded, each a kernel of its own: so the result is the same on every device. One kernel for both
    (``addcmul``, batch norm) may round once, and whether it does depends on the compiler. In place: a second pass over what the
    first has just left in the cache costs a tenth of the whole. On the CPU bytes go through ``native/crop_flip.c``, which rounds alike.
    """
    scale, shift = scale_and_shift(image, mean, std)
    assert scale is not None
    assert shift is not None
    found = crop_flip(image, None, None, 0, scale, shift)
    return image.to(torch.float32, copy=True).mul_(scale).add_(shift) if found is None else found


def crop_flip(
    image: Tensor,
    offsets: Tensor | None,
    mirror: Tensor | None,
    padding: int,
    scale: Tensor | None,
    shift: Tensor | None,
) -> Tensor | None:
    """One pass for uint8 [B, C, H, W] on the CPU: cut at ``offsets`` (int64 [B, 2]) out of ``padding`` black pixels, mirrored where
    ``mirror`` (bool [B]) says, then times ``scale`` plus ``shift`` (float32, one or a number per channel) as float32; uint8 without.

    None where the compiled function is not there or not made for it.
    """
    if image.device.type != "cpu" or image.dtype != torch.uint8 or image.dim() != 4:
        return None
    if any(given is not None and len(given) != len(image) for given in (offsets, mirror)):
        return None  # torch says what is wrong
    compiled = find("paceline_crop_flip")
    if compiled is None:
        return None
    image, count = image.contiguous(), image.shape[1]
    if scale is not None and scale.numel() not in (1, count):
        return None
    out = torch.empty(image.shape, dtype=torch.uint8 if scale is None else torch.float32)
    held = [
        None if t is None else t.contiguous()
        for t in (offsets, mirror, _each(scale, count), _each(shift, count))
    ]
    pointers = [None if t is None else t.data_ptr() for t in held]
    threads = num_threads() if out.numel() >= SHARED else 1
    compiled(image.data_ptr(), *image.shape, padding, *pointers, out.data_ptr(), threads)
    return out


def _each(values: Tensor | None, count: int) -> Tensor | None:
    """A number per channel."""
    return None if values is None else values.flatten().expand(count)


def check_statistics(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    """ValueError where there is not a mean for each deviation, or a deviation is not above 0."""
    numbers = all(map(isfinite, (*(mean or ()), *(std or ()))))
    if (
        (mean is None) != (std is None)
        or len(mean or ()) != len(std or ())
        or min(std or [1]) <= 0
        or not numbers
    ):
        raise ValueError(
            f"mean = {mean} and std = {std} do not fit: as many numbers of each, and std above 0"
        )


@final
class Normalize:
    """``field``: the image's name in the batch, or several; ``mean`` and ``std``: per channel, or one for all, of pixels in [0, 1]."""

    num_draws = 0
    exact = True

    def __init__(self, field: Fields, mean: Sequence[float], std: Sequence[float]) -> None:
        check_statistics(mean, std)
        self.fields, self.mean, self.std = fields_of(field), mean, std

    def with_labels(self, labels: Sequence[str]) -> "Normalize":
        return leaving_alone(self, self.fields, labels, "normalizes")

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        return {
            **batch,
            **{name: normalized(batch[name], self.mean, self.std) for name in self.fields},
        }
