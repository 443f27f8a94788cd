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
from framework.image import jpeg
from framework.image.decode import MAX_PIXELS
from framework.system.native import find

LINEAR, ANTIALIASED, NEAREST = range(3)  # native/scale.h
IS_PORTABLE = False  # tests do without AVX2, which gives the same bits
LYING = 5  # the first orientation of images that lie on their side


class Headers(NamedTuple):
    """The headers of a slice of files, as far as C knows them.

    Attributes:
        data: The address of each file: int64 [n].
        lengths: The bytes of each: int64 [n].
        rows: Height, width, channels and orientation, as stored: int32 [n, 4].
        left: Whether Python must read it: int8 [n].
        seconds: What each took: float64 [n].
    """

    data: np.ndarray
    lengths: np.ndarray
    rows: np.ndarray
    left: np.ndarray
    seconds: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Height and width of the upright images: int64 [n, 2], undefined if ``left``."""
        lies = self.rows[:, 3:] >= LYING
        return np.where(lies, self.rows[:, 1::-1], self.rows[:, :2]).astype(np.int64)


def read_headers(files: Sequence[Any]) -> Headers:
    """Read the headers of image files, bytes or buffers. C knows JPEGs of 8 bits."""
    count = len(files)
    arrays: Any = files
    if not isinstance(files, Placed):
        arrays = [np.frombuffer(file, np.uint8) for file in files]
    data, lengths = _addresses(arrays)
    rows = np.zeros((count, 4), np.int32)
    left = np.ones(count, np.int8)
    nanoseconds = np.zeros(count, np.int64)
    read = find("paceline_image_headers")
    if read is not None and jpeg.find() is not None:
        read(*map(_pointer, (data, lengths)), count, *map(_pointer, (rows, left, nanoseconds)))
        left |= rows[:, 0].astype(np.int64) * rows[:, 1] > MAX_PIXELS
    return Headers(data, lengths, rows, left, nanoseconds * 1e-9)


def decode(
    headers: Headers, windows: np.ndarray, antialias: bool, results: Any, interleaved: bool
) -> np.ndarray:
    """Decode, cut and scale a slice of files, except those that are ``left``.

    Each window is decoded at the smallest scale that covers its result, as ``window_pixels`` does.

    Args:
        headers: Of the files, which must stay in memory. ``left`` becomes 1 where C fails.
        windows: As ``Transform.windows`` returns them: int64 [n, 5].
        antialias: See ``scale``.
        results: Arrays [C, h, w] or [h, w, C], stacked or in a list.
        interleaved: Whether they are [h, w, C].

    Returns:
        The seconds of each image: float64 [n].
    """
    nanoseconds = np.zeros(len(windows), np.int64)
    if headers.left.all():
        return nanoseconds * 1e-9
    channels = results[0].shape[2 if interleaved else 0]
    places = _places(results, interleaved)
    decompressor = jpeg.decompressor()
    find("paceline_decode_jpegs")(
        decompressor.functions,
        ctypes.byref(decompressor.handle),
        *map(_pointer, (headers.data, headers.lengths)),
        len(windows),
        *map(_pointer, (headers.rows, windows, places)),
        _scaling(channels, ANTIALIASED if antialias else LINEAR, interleaved),
        *map(_pointer, (headers.left, nanoseconds)),
    )
    return nanoseconds * 1e-9


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
        The seconds of each image, float64 [n]; None if C cannot do it.
    """
    scale = find("paceline_scale_windows")
    count = len(windows)
    channels = images[0].shape[layout[2]]
    if scale is None or channels not in (1, 3):
        return None
    if type(images) is list and len({image.strides for image in images}) > 1:
        images = [np.ascontiguousarray(image) for image in images]
    strides = [images[0].strides[axis] for axis in layout]
    data, _ = _addresses(images)
    jobs = np.empty((count, 10), np.int64)
    jobs[:, 0] = data + windows[:, 0] * strides[0] + windows[:, 1] * strides[1]
    jobs[:, 1:3] = windows[:, 2:4]
    jobs[:, 3:6] = strides
    jobs[:, 6] = windows[:, 4]
    jobs[:, 7:] = _places(results, False)
    nanoseconds = np.zeros(count, np.int64)
    if scale(_pointer(jobs), count, _scaling(channels, how, False), _pointer(nanoseconds)):
        raise MemoryError("no memory for the rows of an image")
    return nanoseconds * 1e-9


def scale_one(pixels: np.ndarray, how: int, flip: int, out: np.ndarray, interleaved: bool) -> bool:
    """Scale and turn one image, [h, w, C] with any strides, into ``out``. False if C cannot.

    Args:
        pixels: uint8, with 1 or 3 channels.
        how: One of LINEAR, ANTIALIASED, NEAREST.
        flip: As ``Transform.windows`` returns it.
        out: Contiguous, [C, h, w] or [h, w, C].
        interleaved: Whether ``out`` is [h, w, C].
    """
    scale = find("paceline_scale_windows")
    channels = pixels.shape[2]
    if scale is None or channels not in (1, 3):
        return False
    size = out.shape[:2] if interleaved else out.shape[1:]
    place = (pixels.ctypes.data, *pixels.shape[:2], *pixels.strides, flip, out.ctypes.data, *size)
    nanoseconds = ctypes.c_int64()
    job = (ctypes.c_int64 * len(place))(*place)
    if scale(job, 1, _scaling(channels, how, interleaved), ctypes.byref(nanoseconds)):
        raise MemoryError("no memory for the rows of an image")
    return True


def _scaling(channels: int, how: int, interleaved: bool) -> Any:
    return (ctypes.c_int64 * 4)(channels, how, interleaved, IS_PORTABLE)


def _pointer(array: np.ndarray) -> Any:
    return array.ctypes.data


def _addresses(arrays: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the address and the bytes of each array: int64 [n] each."""
    if isinstance(arrays, Placed):
        return arrays.addresses, arrays.lengths
    if isinstance(arrays, np.ndarray):
        first, step = arrays.ctypes.data, arrays.strides[0]
        data = first + step * np.arange(len(arrays), dtype=np.int64)
        return data, np.full(len(arrays), arrays[0].nbytes if len(arrays) else 0, np.int64)
    data = [array.__array_interface__["data"][0] for array in arrays]
    return np.array(data, np.int64), np.array([array.nbytes for array in arrays], np.int64)


def _places(results: Any, interleaved: bool) -> np.ndarray:
    """Return the address, the height and the width of each result: int64 [n, 3]."""
    places = np.empty((len(results), 3), np.int64)
    places[:, 0], _ = _addresses(results)
    if isinstance(results, np.ndarray):
        places[:, 1:] = results.shape[1:3] if interleaved else results.shape[2:]
    else:
        axes = slice(0, 2) if interleaved else slice(1, 3)
        places[:, 1:] = [image.shape[axes] for image in results]
    return places
