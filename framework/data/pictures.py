"""Cuts and scales the images of a slice of records: image files, and raw pixels."""

import math
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from time import perf_counter
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN, Transform
from framework.contracts.records import Field, RecordStore
from framework.data.requests import Slice
from framework.errors import ConfigError, DataError
from framework.media.crop import window_pixels
from framework.media.decode import accepted_header, refuse_colors
from framework.media.header import BadImage, ImageHeader
from framework.media.label_map import decode_labels
from framework.media.scale import before_turn, scale_into
from framework.media.slices import (
    ANTIALIASED,
    LINEAR,
    NEAREST,
    Headers,
    decode,
    read_headers,
    scale_windows,
)

SAMPLED = 16  # records that show the formats of a store's images
MOST_FLIP = MIRRORED | UPSIDE_DOWN | TURNED
UNUSED = 2  # references to an array in a list: the list's, and the argument that asks
INTERLEAVED, PLANAR = (0, 1, 2), (1, 2, 0)  # the axes of rows, columns and channels


class Opened(NamedTuple):
    """The images of a field, of which the sizes are known.

    Attributes:
        field: What they are.
        values: Files, or arrays [C, H, W] or [H, W, C]: a list or one stacked array.
        sizes: Height and width of each, upright: int64 [B, 2].
        headers: Those of files.
        left: Those that C left to Python, by place.
    """

    field: Field
    values: Any
    sizes: Tensor
    headers: Headers | None
    left: Mapping[int, ImageHeader]


@final
class BatchMemory:
    """Memory of batches that nobody holds any more: fresh memory costs a page fault per 4 kB.

    A tensor made of a NumPy array holds the array while the tensor or a view of it lives, so the
    array's reference count shows whether it is free.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

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
    """Cuts images as a transform's windows say.

    Args:
        store: Names the records in errors.
        transform: Says to what size images are scaled, and how.
        sampled_gray: The fields that are gray because a sample of their images is.
    """

    def __init__(
        self, store: RecordStore, transform: Transform, sampled_gray: Sequence[Field]
    ) -> None:
        self._store = store
        self._transform = transform
        self._sampled_gray = sampled_gray

    def open(self, field: Field, values: Any, indices: Tensor) -> Opened:
        """Read the sizes of images. DataError D106 for a file that is no image."""
        if field.encoding != "image":
            size = field.shape[:2] if field.interleaved else field.shape[1:]
            if isinstance(values, Tensor):
                values = values.numpy()
            sizes = _all(size, len(indices)).clone()  # a transform may change them
            return Opened(field, values, sizes, None, {})
        is_gray = field in self._sampled_gray
        headers = read_headers(values, 1) if is_gray else read_headers(values)
        sizes = headers.sizes
        left: dict[int, ImageHeader] = {}
        for number in np.flatnonzero(headers.left).tolist():
            with self._named(indices, number):
                left[number] = accepted_header(values[number])
                sizes[number] = left[number].size
        if field.kind == "labels":
            headers.left[:] = 1
        return Opened(field, values, torch.from_numpy(sizes), headers, left)

    def check_windows(self, sizes: Tensor, windows: Tensor, indices: Tensor) -> None:
        """Raise ConfigError C400 for a window that is not in its image, as a user's may be."""
        limits, places = sizes.numpy(), windows.numpy()
        begins, lengths = places[:, :2], places[:, 2:4]
        wrong = (begins < 0) | (lengths < 1) | (lengths > limits) | (begins > limits - lengths)
        flips = places[:, 4]
        bad = wrong.any(1) | (flips < 0) | (flips > MOST_FLIP)
        if bad.any():
            number = int(bad.argmax())
            where = f"transform = {type(self._transform).__name__}"
            height, width = limits[number].tolist()
            name = self._store.name(int(indices[number]))
            what = f"its window {places[number].tolist()} is not in {name}, {height} x {width}"
            fix = "return top, left, height and width of a part of each image, and a flip of 0 to 7"
            raise ConfigError(400, where, what, fix)

    def shapes(self, field: Field, windows: Tensor) -> list[tuple[int, int, int]]:
        """Return what each image becomes: C, h, w."""
        channels, size = field.channels or 3, self._transform.size
        if size is not None:
            return [(channels, *size)] * len(windows)
        return [
            (channels, *before_turn(flip, (height, width)))
            for _, _, height, width, flip in windows.tolist()
        ]

    def cut(
        self, opened: Opened, windows: Tensor, part: Slice, results: Any, interleaved: bool
    ) -> None:
        """Cut and scale images, and add what each took to ``part.seconds``.

        Args:
            opened: The images.
            windows: As ``Transform.windows`` returns them: int64 [B, 5].
            part: The records.
            results: uint8 arrays [C, h, w] or [h, w, C], stacked or in a list.
            interleaved: Whether they are [h, w, C].

        Raises:
            DataError: D106 for a file that is no image, D122 for colors where a sample had none.
        """
        places, seconds = windows.numpy(), np.asarray(part.seconds)
        antialias, field = self._transform.antialias, opened.field
        numbers: Sequence[int] = range(len(places))
        if opened.headers is not None:
            numbers = decode(opened.headers, places, antialias, results, interleaved)
            seconds += opened.headers.seconds
        elif not interleaved:
            how = ANTIALIASED if antialias else LINEAR
            how = NEAREST if field.kind == "labels" else how
            layout = INTERLEAVED if field.interleaved else PLANAR
            took = scale_windows(opened.values, layout, places, how, results)
            if took is not None:
                seconds += took
                return
        if numbers:
            self.check_windows(opened.sizes, windows, part.indices)
        for number in numbers:
            window, index = places[number].tolist(), int(part.indices[number])
            with self._named(part.indices, number), _stopped(seconds, number):
                pixels = self._pixels(opened, number, window, index)
                scale_into(
                    pixels,
                    antialias,
                    window[4],
                    results[number],
                    field.kind == "labels",
                    interleaved,
                )

    def _pixels(self, opened: Opened, number: int, window: Any, index: int) -> np.ndarray:
        """Return the unscaled pixels of a window: [h, w, C]. BadImage."""
        field, data = opened.field, opened.values[number]
        top, left, height, width, flip = window
        rows, columns = slice(top, top + height), slice(left, left + width)
        if opened.headers is None:
            pixels = np.asarray(data)
            pixels = pixels if field.interleaved else pixels.transpose(1, 2, 0)
            return pixels[rows, columns]
        if field.kind == "labels":
            return decode_labels(data)[rows, columns]
        header = opened.left.get(number) or accepted_header(data)
        if field in self._sampled_gray and header.colors > 1:
            refuse_colors(data, self._store.name(index))
        size = self._transform.size and before_turn(flip, self._transform.size)
        return window_pixels(data, header, field.channels or 3, window, size)

    @contextmanager
    def _named(self, indices: Tensor, number: int) -> Generator[None]:
        try:
            yield
        except BadImage as error:
            raise unreadable(self._store, int(indices[number]), error) from error


@lru_cache(maxsize=16)
def _all(size: tuple[int, int], count: int) -> Tensor:
    """Return the size of each of ``count`` images: int64 [count, 2]."""
    return torch.tensor([size] * count, dtype=torch.int64).view(count, 2)


@contextmanager
def _stopped(seconds: np.ndarray, number: int) -> Generator[None]:
    """Add the time of the block to the seconds of an image."""
    start = perf_counter()
    yield
    seconds[number] += perf_counter() - start


def decodes_in_python(store: RecordStore, name: str) -> bool:
    """Return whether C leaves most images of a field to Python, as far as a sample shows."""
    count = store.manifest.num_records
    if not count:
        return False
    records = store.read(torch.arange(0, count, -(-count // SAMPLED)))
    return bool(2 * read_headers(records[name]).left.mean() > 1)


def unreadable(store: RecordStore, index: int, error: BadImage) -> DataError:
    """Return the error for a record whose image cannot be decoded."""
    what = f"not a readable image ({error})"
    return DataError(106, store.name(index), what, "correct or remove it")


def uneven(
    store: RecordStore,
    index: int,
    what: str,
    shape: Sequence[int],
    other: Sequence[int],
    fix: str,
) -> DataError:
    """Return the error for a record whose size differs from that of another of its batch."""
    what = f"{what} {tuple(shape)}, another of its batch {tuple(other)}"
    return DataError(107, store.name(index), what, fix)
