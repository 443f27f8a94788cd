"""Normalize pixels on the device, as a quarter of the bytes cross the bus; what augments share."""

from collections.abc import Sequence
from copy import copy
from functools import cache
from math import isfinite
from typing import NamedTuple, Self, final

import torch
from torch import Tensor
from torch.compiler import is_compiling

from framework.contracts.batch import Batch
from framework.contracts.data import AugmentTraits
from framework.errors import ConfigError
from framework.system.native import CheckedKernel, find, num_threads

Fields = str | Sequence[str]  # one field of the batch, or several that are changed alike
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHARED = 1 << 16  # pixels from which threads share a batch


class PixelForm(NamedTuple):
    """How normalized pixels lie in memory: float32, bfloat16 or float16, and in which layout."""

    dtype: torch.dtype = torch.float32
    layout: torch.memory_format = torch.contiguous_format


PLAIN = PixelForm()


def form_of(dtype: str) -> PixelForm:
    """Return the form for a dtype's name, or raise ValueError."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype = {dtype} must be {', '.join(DTYPES)}")
    return PixelForm(DTYPES[dtype])


def fields_of(field: Fields) -> tuple[str, ...]:
    """Return the names that a configuration's ``field`` holds."""
    return (field,) if isinstance(field, str) else tuple(field)


class PixelAugment(AugmentTraits):
    """An augment of pixels, and how it treats label maps."""

    fields: tuple[str, ...]  # which it changes
    labels: tuple[str, ...] = ()  # label maps, which it moves as the images
    form: PixelForm = PLAIN
    recolors: str = ""  # what it does to colors, as in "normalizes"; "": it moves pixels

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return a copy that moves ``labels``. C193 if it would change the colors of one."""
        if not self.recolors:
            changed = copy(self)
            changed.fields = tuple(name for name in self.fields if name not in labels)
            changed.labels = tuple(labels)
            return changed
        if wrong := [name for name in self.fields if name in labels]:
            where = f"augment.field = {', '.join(self.fields)}"
            what = f"{self.recolors} {', '.join(wrong)}, a label map"
            raise ConfigError(193, where, what, "leave it out: only pictures have colors")
        return self

    def with_layout(self, layout: torch.memory_format) -> Self:
        changed = copy(self)
        changed.form = self.form._replace(layout=layout)
        return changed


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


def check_pictures(values: Tensor) -> None:
    """Raise ValueError unless values are [B, C, H, W]. Clips might fit others by chance."""
    if values.dim() != 4:
        raise ValueError(f"{tuple(values.shape)} are no pictures [B, C, H, W]")


class PixelChange(NamedTuple):
    """What is done to each record of a batch of B images with C channels."""

    offsets: Tensor | None = None  # int64 [B, 2], the corner (y, x) of the cut in the padded image
    mirror: Tensor | None = None  # bool [B], which records are mirrored before the cut
    padding: int = 0  # pixels on each side of the padded image
    # Whether padding mirrors the image at its borders, without repeating the border itself.
    # Otherwise it is black.
    reflects: bool = False
    scale: Tensor | None = None  # float32, 1 or C factors; None: pixels stay uint8
    shift: Tensor | None = None  # float32, 1 or C summands

    def fits(self, image: Tensor) -> bool:
        """Return whether this is a change of ``image``, uint8 [B, C, H, W]."""
        if image.dtype != torch.uint8 or image.dim() != 4:
            return False
        if self.scale is not None and self.scale.numel() not in (1, image.shape[1]):
            return False
        if self.reflects and self.padding >= min(image.shape[2:]):
            return False
        tables = [table for table in (self.offsets, self.mirror) if table is not None]
        return all(len(table) == len(image) for table in tables)

    def tables(self, num_channels: int) -> list[Tensor | None]:
        """Return what kernels read: offsets, mirror (uint8), scale and shift (float32 [C])."""
        tables = [self.offsets, None, None, None]
        if self.mirror is not None:
            tables[1] = self.mirror.view(torch.uint8)
        if self.scale is not None and self.shift is not None:
            tables[2:] = [own.flatten().expand(num_channels) for own in (self.scale, self.shift)]
        return [own if own is None else own.contiguous() for own in tables]


def by_operators(image: Tensor, change: PixelChange) -> Tensor:
    """Do pixel by pixel what the kernel does: slow, but torch's compiler makes one kernel of it."""
    count, channels, height, width = image.shape
    device = image.device
    rows = torch.arange(height, device=device).view(1, -1)
    columns = torch.arange(width, device=device).expand(count, -1)
    if change.mirror is not None:
        columns = torch.where(change.mirror.view(-1, 1), width - 1 - columns, columns)
    if change.offsets is not None:
        rows = rows + (change.offsets[:, :1] - change.padding)
        columns = columns + (change.offsets[:, 1:] - change.padding)
    if change.reflects:
        rows = (height - 1) - ((height - 1) - rows.abs()).abs()
        columns = (width - 1) - ((width - 1) - columns.abs()).abs()
    rows = rows.view(-1, 1, height, 1)
    columns = columns.view(-1, 1, 1, width)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    record = torch.arange(count, device=device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=device).view(-1, 1, 1)
    pixels = image[record, channel, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    result = torch.where(inside, pixels, 0)
    if change.scale is None or change.shift is None:
        return result
    return result.to(torch.float32).mul_(change.scale).add_(change.shift)


# The kernel, and why it is no longer used. Batches of a new kind are computed both ways.
pixel_kernel = CheckedKernel()


def by_kernel(
    kernel: CheckedKernel, image: Tensor, change: PixelChange, form: PixelForm = PLAIN
) -> Tensor | None:
    """Return the changed images of a GPU in ``form``, or None if the operators must do it."""
    if not change.fits(image) or not image.numel():
        return None
    kind = (image.shape[1:], change.padding, change.reflects, form)
    kind += tuple(part is None for part in change)
    dtype = torch.uint8 if change.scale is None else form.dtype
    return kernel(
        kind, lambda: _launched(image, change, form), lambda: by_operators(image, change).to(dtype)
    )


def _launched(image: Tensor, change: PixelChange, form: PixelForm) -> Tensor:
    from framework.augment.pixel_kernel import launch  # noqa: PLC0415  # only with Triton

    dtype = torch.uint8 if change.scale is None else form.dtype
    offsets, mirror, scale, shift = change.tables(image.shape[1])
    out = torch.empty(image.shape, dtype=dtype, device=image.device, memory_format=form.layout)
    launch(image, (offsets, mirror, scale, shift), change.padding, change.reflects, out)
    return out


def threads_for(pixels: int) -> int:
    """Return the number of threads that share a call of a compiled function."""
    return 1 if pixels < SHARED else num_threads()


def scale_and_shift(
    image: Tensor, mean: Sequence[float], std: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return the factors on ``image``'s values, and what is then added: float32 [1 or C, 1, 1]."""
    return constant_tables(tuple(mean), tuple(std), white_of(image.dtype), image.device)


def constant_tables(
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
    """Return ``(pixel - mean) / std`` per channel, for pixels in [0, 1], alike on every device."""
    scale, shift = scale_and_shift(image, mean, std)
    result = changed_at_once(image, PixelChange(scale=scale, shift=shift), form)
    if result is not None:
        return result
    return image.to(torch.float32, copy=True).mul_(scale).add_(shift).to(form.dtype)


def changed_at_once(image: Tensor, change: PixelChange, form: PixelForm = PLAIN) -> Tensor | None:
    """Change uint8 images ([B, C, H, W]) in one pass: in C, or on a GPU; None if neither fits."""
    # torch's compiler cannot look into ``find``, and makes one kernel of the operators.
    if is_compiling() or not change.fits(image):
        return None
    if image.device.type == "cuda":
        return by_kernel(pixel_kernel, image, change, form)
    if image.device.type != "cpu" or change.reflects:
        return None
    compiled = find("paceline_crop_flip")
    if compiled is None:
        return None
    image = image.contiguous()
    dtype = torch.uint8 if change.scale is None else torch.float32
    out = torch.empty(image.shape, dtype=dtype)
    tables = change.tables(image.shape[1])
    pointers = [table if table is None else table.data_ptr() for table in tables]
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
        self, field: Fields, mean: Sequence[float], std: Sequence[float], dtype: str = "float32"
    ) -> None:
        check_statistics(mean, std)
        self.form = form_of(dtype)
        self.fields = self.normalized_fields = fields_of(field)
        self.mean = mean
        self.std = std

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        result = dict(batch)
        for name in self.fields:
            result[name] = normalized(batch[name], self.mean, self.std, self.form)
        return result
