"""Reads slices of images in C, which holds Python's lock for no image.

Beside a GPU, a thread that holds the lock stops the thread that launches the step's kernels. So
there is one call for the headers of a slice, and one for its pixels. What C does not read is left
to ``image.crop``, image by image.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from framework.contracts.records import Placed
from framework.media import jpeg
from framework.media.decode import MAX_PIXELS
from framework.system.native import find

LINEAR, ANTIALIASED, NEAREST = range(3)  # native/scale.h
SCALING = ctypes.c_int64 * 4  # native/scale.h
JOB, LAYOUT = ctypes.c_int64 * 10, ctypes.c_int64 * 5  # native/images.c
BYTES = ctypes.c_char * 0
IS_PORTABLE = False  # tests do without AVX2, which gives the same bits
MOST_CHANNELS = 255  # that a header can say


class Headers(NamedTuple):
    """The headers of a slice of files, as far as C knows them.

    Attributes:
        table: A row of each file, int64 [n, 18], which C reads and writes: ``Image`` of
            ``native/images.c``. One table, because it takes Python a while to make an array.
    """

    table: np.ndarray

    @property
    def stored(self) -> np.ndarray:
        """Height, width, channels and orientation, as stored: int64 [n, 4], a view."""
        return self.table[:, 2:6]

    @property
    def sizes(self) -> np.ndarray:
        """Height and width of the upright images: int64 [n, 2], a view, undefined if ``left``."""
        return self.table[:, 6:8]

    @property
    def left(self) -> np.ndarray:
        """Whether Python must read it, 0 or 1: int64 [n], a view."""
        return self.table[:, 8]

    @property
    def seconds(self) -> np.ndarray:
        """What each took: float64 [n]."""
        return self.table[:, 9] * 1e-9


def read_headers(files: Sequence[Any], most_channels: int = MOST_CHANNELS) -> Headers:
    """Read the headers of image files, bytes or buffers. C knows JPEGs of 8 bits.

    Those with more channels are left to Python.
    """
    table = np.zeros((len(files), 18), np.int64)
    if isinstance(files, Placed):
        table[:, 0], table[:, 1] = files.addresses, files.lengths
    else:
        table[:, :2] = [_place_of(np.frombuffer(file, np.uint8)) for file in files]
    headers = Headers(table)
    read = find("paceline_image_headers")
    if read is None or jpeg.find() is None:
        headers.left[:] = 1
    else:
        read(_buffer(table), len(files), MAX_PIXELS, most_channels)
    return headers


def decode(
    headers: Headers, windows: np.ndarray, antialias: bool, results: Any, interleaved: bool
) -> list[int]:
    """Decode, cut and scale a slice of files, except those that are ``left``.

    Each window is decoded at the smallest scale that covers its result, as ``window_pixels`` does.

    Args:
        headers: Of the files, which must stay in memory. ``left`` becomes 1 where C fails, or a
            window is not in its image.
        windows: As ``Transform.windows`` returns them: int64 [n, 5].
        antialias: See ``scale``.
        results: Arrays [C, h, w] or [h, w, C], stacked or in a list.
        interleaved: Whether they are [h, w, C].

    Returns:
        The places of those that are ``left``.
    """
    table = headers.table
    if not len(table) or jpeg.find() is None or find("paceline_decode_jpegs") is None:
        return list(range(len(table)))
    table[:, 10:15] = windows
    _place(results, interleaved, table[:, 15:])
    decompressor = jpeg.decompressor()
    num_left = find("paceline_decode_jpegs")(
        decompressor.functions,
        ctypes.byref(decompressor.handle),
        _buffer(table),
        len(table),
        _scaling(results, ANTIALIASED if antialias else LINEAR, interleaved),
    )
    return np.flatnonzero(headers.left).tolist() if num_left else []


def scale_windows(
    images: Any, layout: tuple[int, int, int], windows: np.ndarray, how: int, results: Any
) -> np.ndarray | None:
    """Cut and scale a slice of raw images.

    Args:
        images: uint8 arrays in a list, or stacked.
        layout: The axes of rows, columns and channels.
        windows: As ``Transform.windows`` returns them: int64 [n, 5].
        how: One of LINEAR, ANTIALIASED, NEAREST.
        results: Arrays [C, h, w], stacked or in a list.

    Returns:
        The seconds of each image, float64 [n]; None if C cannot do all, or a window is outside.
    """
    scale = find("paceline_scale_windows")
    if scale is None or not len(windows) or images[0].shape[layout[2]] not in (1, 3):
        return None
    first = images[0]
    strides = [first.strides[axis] for axis in layout]
    others = images if type(images) is list else ()
    if any(image.strides != first.strides for image in others) or not _is_plain(strides, 3):
        images = [np.ascontiguousarray(image) for image in images]
        strides = [images[0].strides[axis] for axis in layout]
    jobs = np.empty((len(windows), 10), np.int64)
    jobs[:, 0] = _addresses(images)
    jobs[:, 1:6] = windows
    _place(results, False, jobs[:, 6:9])
    shared = LAYOUT(first.shape[layout[0]], first.shape[layout[1]], *strides)
    if scale(_buffer(jobs), len(windows), shared, _scaling(results, how, False)):
        return None
    return jobs[:, 9] * 1e-9


def scale_one(pixels: np.ndarray, how: int, flip: int, out: np.ndarray, interleaved: bool) -> bool:
    """Scale and turn one image, [h, w, C] with any strides, into ``out``. False if C cannot.

    Args:
        pixels: uint8.
        how: One of LINEAR, ANTIALIASED, NEAREST.
        flip: As ``Transform.windows`` returns it.
        out: Contiguous, [C, h, w] or [h, w, C].
        interleaved: Whether ``out`` is [h, w, C].
    """
    scale = find("paceline_scale_windows")
    if scale is None or pixels.shape[2] not in (1, 3):
        return False
    if not _is_plain(pixels.strides, pixels.shape[2]):
        pixels = np.ascontiguousarray(pixels)
    height, width = pixels.shape[:2]
    out_size = out.shape[:2] if interleaved else out.shape[1:]
    job = JOB(pixels.ctypes.data, 0, 0, height, width, flip, out.ctypes.data, *out_size)
    return not scale(
        job, 1, LAYOUT(height, width, *pixels.strides), _scaling([out], how, interleaved)
    )


def _is_plain(strides: Sequence[int], channels: int) -> bool:
    """Return whether the channels of a pixel, or the pixels of a row, are neighbors."""
    return strides[1] == 1 or tuple(strides[1:]) == (channels, 1)


def _scaling(results: Any, how: int, interleaved: bool) -> Any:
    channels = results[0].shape[2 if interleaved else 0]
    return SCALING(channels, how, interleaved, IS_PORTABLE)


def _buffer(array: Any) -> Any:
    """Return the memory of a contiguous array for a call: four times as fast as ``ctypes.data``."""
    return BYTES.from_buffer(array)


def _place_of(array: np.ndarray) -> tuple[int, int]:
    """Return where an array is in memory, and its bytes."""
    return array.ctypes.data, array.nbytes


def _addresses(arrays: Any) -> Any:
    """Return the address of each array: int64 [n]."""
    if isinstance(arrays, Placed):
        return arrays.addresses
    if isinstance(arrays, np.ndarray):
        address = ctypes.addressof(_buffer(arrays))
        return np.arange(address, address + len(arrays) * arrays.strides[0], arrays.strides[0])
    return [array.ctypes.data for array in arrays]


def _place(results: Any, interleaved: bool, columns: np.ndarray) -> None:
    """Write the address, the height and the width of each result to int64 [n, 3]."""
    axes = slice(0, 2) if interleaved else slice(1, 3)
    columns[:, 0] = _addresses(results)
    if isinstance(results, np.ndarray):
        columns[:, 1:] = results.shape[1:][axes]
    else:
        columns[:, 1:] = [image.shape[axes] for image in results]
