"""Cuts and scales the images of a slice of records: image files, raw pixels, frames of clips."""

import math
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from time import perf_counter
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.data import SourceContext
from framework.contracts.records import Field, RecordStore
from framework.errors import DataError
from framework.measure.clock import Stopwatch
from framework.media import scale, sound_video
from framework.media.decode import accepted_header, decode_labels, refuse_colors, window_pixels
from framework.media.header import BadImage, ImageHeader

AT_ONCE = 8  # images in memory before a transform's function: photographs take megabytes
UNUSED = 2  # references to an array in a list: the list's, and the argument that asks
INTERLEAVED, PLANAR = (0, 1, 2), (1, 2, 0)  # the axes of rows, columns and channels


class Slice(NamedTuple):
    """What the fields of a slice share."""

    indices: Tensor  # the records: int64 [B]
    keys: Tensor  # what random changes depend on: int64 [B]
    numbers: Tensor | None  # the transform's draws, float32 [B, num_draws]; None outside training
    watch: Stopwatch  # of the thread
    seconds: "memoryview[float]"  # what each record took, as far as it is measured: float64 [B]
    windows: dict[str, Tensor]  # of image fields, once they are known: int64 [B, 5]

    def between(self, start: int, stop: int) -> "Slice":
        place = slice(start, stop)
        return self._replace(
            indices=self.indices[place],
            keys=self.keys[place],
            numbers=None if self.numbers is None else self.numbers[place],
            seconds=self.seconds[place],
            windows={},
        )


class Opened(NamedTuple):
    """The images of a field, of which the sizes are known."""

    field: Field
    values: Any  # files, or arrays [C, H, W] or [H, W, C]: a list or one stacked array
    sizes: Tensor  # height and width of each, upright: int64 [B, 2]
    table: np.ndarray | None  # of files, for ``decode_windows``
    left: Mapping[int, ImageHeader]  # those that C left to Python, by place


@final
@dataclass(eq=False)
class BatchMemory:
    """Memory of batches that nobody holds any more: fresh memory costs a page fault per 4 kB.

    A tensor made of an array holds it, so the array's reference count shows whether it is free.
    """

    _arrays: list[np.ndarray] = dataclass_field(default_factory=list[np.ndarray], init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"_arrays": []}

    def take(self, *shape: int) -> Tensor:
        """Return uint8 of this shape, with undefined content."""
        size = math.prod(shape)
        arrays = self._arrays
        for number in range(len(arrays)):
            if arrays[number].size >= size and sys.getrefcount(arrays[number]) == UNUSED:
                return torch.from_numpy(arrays[number][:size].reshape(shape))
        # outgrown arrays go when their batches do
        self._arrays = [array for array in arrays if array.size >= size]
        self._arrays.append(np.empty(size, np.uint8))
        return torch.from_numpy(self._arrays[-1].reshape(shape))


@final
class Pictures:
    """Cuts images as windows say. ``gray``: fields that are gray as a sample of them is."""

    def __init__(self, store: RecordStore, context: SourceContext, gray: Sequence[Field]) -> None:
        self._store = store
        self._transform = context.transform
        self._transform_key = context.transform_key
        self._in_lists = context.collate == "list" and context.transform.size is None
        self._sampled_gray = gray

    def cut(self, name: str, field: Field, values: Any, part: Slice, out: Tensor | None) -> Any:
        """Return the windows of images as ``stacked`` does, or a list of B if sizes may differ."""
        if not self._in_lists:
            return self.stacked(name, field, values, part, out)
        opened, windows = self._windows(name, field, values, part)
        arrays = [np.empty(shape, np.uint8) for shape in self._shapes(field, windows)]
        self._fill(opened, windows, part, arrays)
        return [torch.from_numpy(own) for own in arrays]

    def stacked(
        self, name: str, field: Field, values: Any, part: Slice, out: Tensor | None = None
    ) -> Tensor:
        """Return the windows of images, uint8 [B, C, h, w], in ``out`` if it is given.

        DataError D106 for a file that is no image, D107 for images of several sizes, D122 for
        colors where a sample had none.
        """
        opened, windows = self._windows(name, field, values, part)
        if out is None:
            shapes = self._shapes(field, windows)
            if len(set(shapes)) > 1:
                place = next(place for place, shape in enumerate(shapes) if shape != shapes[0])
                raise self.uneven_images(int(part.indices[place]), shapes[place], shapes[0])
            out = torch.empty((len(shapes), *shapes[0]), dtype=torch.uint8)
        self._fill(opened, windows, part, out.numpy())
        return out

    def for_function(
        self, name: str, field: Field, values: Any, part: Slice
    ) -> Iterator[np.ndarray]:
        """Yield windows for the transform's function: scaled and flipped [h, w, C] arrays."""
        for start in range(0, len(part.indices), AT_ONCE):
            few = part.between(start, start + AT_ONCE)
            opened, windows = self._windows(name, field, values[start : start + AT_ONCE], few)
            shapes = self._shapes(field, windows)
            arrays = [np.empty((*size, channels), np.uint8) for channels, *size in shapes]
            self._fill(opened, windows, few, arrays, interleaved=True)
            yield from arrays

    def clips(self, name: str, field: Field, values: Any, part: Slice, out: Tensor | None) -> Any:
        """Return clips of videos: uint8 [B, T, C, h, w], or a list of B as ``cut`` has it.

        DataError D261 for a value that does not hold frames.
        """
        if not self._in_lists:
            return self._stacked_clips(name, field, values, part, out)
        parts = [(values[n : n + 1], part.between(n, n + 1)) for n in range(len(part.indices))]
        return [self._stacked_clips(name, field, *own, None)[0] for own in parts]

    def _stacked_clips(
        self, name: str, field: Field, values: Any, part: Slice, out: Tensor | None
    ) -> Tensor:
        length = self._transform.num_frames
        videos: list[Any] = []
        for index, value in zip(part.indices.tolist(), values, strict=True):
            try:
                videos.append(sound_video.frames_of(value, field))
            except sound_video.BadFrames as error:
                what = f"{name} is not a readable video ({error})"
                raise DataError(261, self._store.name(index), what, "pack it again") from error
        lengths = torch.tensor([len(video) for video in videos])
        chosen = self._transform.frame_numbers(lengths, part.numbers).tolist()
        pairs = zip(videos, chosen, strict=True)
        frames = [video[number] for video, own in pairs for number in own]
        seconds = nothing_yet(len(frames))
        # The frames of clips are cut as images of which all of a clip have the same draws.
        flat = part._replace(
            indices=part.indices.repeat_interleave(length),
            keys=part.keys.repeat_interleave(length),
            numbers=None if part.numbers is None else part.numbers.repeat_interleave(length, 0),
            seconds=seconds,
            windows={},
        )
        if out is not None:
            out = out.flatten(0, 1)
        images = self.stacked(name, field.frame, frames, flat, out)
        for number in range(len(part.seconds)):
            part.seconds[number] += sum(seconds[number * length : (number + 1) * length])
        return images.unflatten(0, (-1, length))

    def uneven_images(self, index: int, shape: Sequence[int], other: Sequence[int]) -> DataError:
        fix = f"set {self._transform_key}=resize or val_batch_size=1 (batch_size=1)"
        fix += ", or pack with one size"
        return uneven(self._store, index, "the image is", shape, other, fix)

    def _windows(self, name: str, field: Field, values: Any, part: Slice) -> tuple[Opened, Tensor]:
        opened = self.opened(field, values, part.indices)
        if opened.table is not None:
            part.watch.mark("decode")
        windows = self._transform.windows(opened.sizes, part.numbers)
        part.windows[name] = windows
        part.watch.mark("transform")
        return opened, windows

    def opened(self, field: Field, values: Any, indices: Tensor) -> Opened:
        """Return the images that the store gave, with their sizes. DataError D106."""
        if field.encoding != "image":
            size = field.shape[:2] if field.interleaved else field.shape[1:]
            if isinstance(values, Tensor):
                values = values.numpy()
            sizes = torch.tensor(size).repeat(len(indices), 1)  # a transform may change them
            return Opened(field, values, sizes, None, {})
        is_gray = field in self._sampled_gray
        table = scale.read_headers(values, 1) if is_gray else scale.read_headers(values)
        sizes = table[:, scale.SIZES]
        left: dict[int, ImageHeader] = {}
        for number in np.flatnonzero(table[:, scale.LEFT]).tolist():
            try:
                left[number] = accepted_header(values[number])
                sizes[number] = left[number].size
            except BadImage as error:
                raise unreadable(self._store, int(indices[number]), error) from error
        if field.kind == "labels":
            table[:, scale.LEFT] = 1
        return Opened(field, values, torch.from_numpy(sizes), table, left)

    def _shapes(self, field: Field, windows: Tensor) -> list[tuple[int, int, int]]:
        channels, size = field.channels or 3, self._transform.size
        if size is not None:
            return [(channels, *size)] * len(windows)
        return [
            (channels, *scale.before_turn(flip, (height, width)))
            for _, _, height, width, flip in windows.tolist()
        ]

    def _fill(
        self, opened: Opened, windows: Tensor, part: Slice, results: Any, interleaved: bool = False
    ) -> None:
        places, seconds = windows.numpy(), np.asarray(part.seconds)
        are_labels = opened.field.kind == "labels"
        how = scale.ANTIALIASED if self._transform.antialias else scale.LINEAR
        if are_labels:
            how = scale.NEAREST
        rest: Sequence[int] = range(len(places))
        if opened.table is not None:
            rest = scale.decode_windows(opened.table, places, how, results, interleaved)
            seconds += opened.table[:, scale.NANOSECONDS] * 1e-9
        elif not interleaved:
            layout = INTERLEAVED if opened.field.interleaved else PLANAR
            took = scale.scale_windows(opened.values, layout, places, how, results)
            if took is not None:
                seconds += took
                rest = ()
        field, size = opened.field, self._transform.size
        for number in rest:
            start = perf_counter()
            data = opened.values[number]
            window = places[number].tolist()
            top, left, height, width, flip = window
            rows, columns = slice(top, top + height), slice(left, left + width)
            try:
                if opened.table is None:
                    pixels = np.asarray(data)
                    pixels = pixels if field.interleaved else pixels.transpose(1, 2, 0)
                    pixels = pixels[rows, columns]
                elif are_labels:
                    pixels = decode_labels(data)[rows, columns]
                else:
                    header = opened.left.get(number) or accepted_header(data)
                    if field in self._sampled_gray and header.colors > 1:
                        refuse_colors(data, self._store.name(int(part.indices[number])))
                    turned = size and scale.before_turn(flip, size)
                    pixels = window_pixels(data, header, field.channels or 3, window, turned)
                scale.scale_into(pixels, how, flip, results[number], interleaved)
            except BadImage as error:
                raise unreadable(self._store, int(part.indices[number]), error) from error
            seconds[number] += perf_counter() - start
        part.watch.mark("transform" if opened.table is None else "decode")


def nothing_yet(count: int) -> "memoryview[float]":
    """Return the seconds of ``count`` records that are still to be measured: float64 [count]."""
    return memoryview(array("d", bytes(8 * count)))


def unreadable(store: RecordStore, index: int, error: BadImage) -> DataError:
    what = f"not a readable image ({error})"
    return DataError(106, store.name(index), what, "correct or remove it")


def uneven(store: RecordStore, index: int, what: str, size: Any, other: Any, fix: str) -> DataError:
    what = f"{what} {tuple(size)}, another of its batch {tuple(other)}"
    return DataError(107, store.name(index), what, fix)
