"""Reads slices of JPEGs in C, which holds Python's lock for no image.

Beside a GPU, a thread that holds it stops the thread that launches the step's kernels. What C does
not read is left to ``decode.window_pixels``. C calls libjpeg-turbo's own interface (TurboJPEG 3),
which comes with the package ``turbojpeg`` (the extra ``turbo``) or the system.
"""

import ctypes
import importlib.util
import threading
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from framework.contracts.records import Placed
from framework.media.decode import MAX_PIXELS
from framework.media.scale import ANTIALIASED, LINEAR, buffer_of, place_results, scaling
from framework.system import native

# Columns of a slice of files, int64 [n, 18], which C reads and writes: ``Image`` of
# ``native/images.c``. One table, because it takes Python a while to make an array.
STORED = slice(2, 6)  # height, width, channels and orientation
SIZES = slice(6, 8)  # height and width of the upright image, unless it is left
LEFT = 8  # whether Python must read it
NANOSECONDS = 9  # what it took
DECOMPRESS = 1  # turbojpeg.h
# In the order in which native/images.c has them.
FUNCTIONS = (
    *("tj3Init", "tj3Get", "tj3DecompressHeader", "tj3SetScalingFactor"),
    *("tj3SetCroppingRegion", "tj3Decompress8", "tj3Destroy"),
)


def read_headers(files: Sequence[Any], most_channels: int = 255) -> np.ndarray:
    """Return a table of image files, with the headers of JPEGs; others are left to Python."""
    table = np.zeros((len(files), 18), np.int64)
    if isinstance(files, Placed):
        table[:, 0], table[:, 1] = files.addresses, files.lengths
    else:
        arrays = [np.frombuffer(file, np.uint8) for file in files]
        table[:, :2] = [(array.ctypes.data, array.nbytes) for array in arrays]
    read = native.find("paceline_image_headers")
    if read is None or find() is None:
        table[:, LEFT] = 1
    else:
        read(buffer_of(table), len(files), MAX_PIXELS, most_channels)
    return table


def decode_windows(
    table: np.ndarray, windows: np.ndarray, antialias: bool, results: Any, interleaved: bool
) -> list[int]:
    """Decode, cut and scale a slice of files, as ``window_pixels`` and ``scale_into`` do.

    ``table`` is that of the files, which must stay in memory, ``windows`` are int64 [n, 5], and
    ``results`` [C, h, w] or, if ``interleaved``, [h, w, C], stacked or in a list. Return the places
    that are ``LEFT``: C has failed, or a window is not in its image.
    """
    decode = native.find("paceline_decode_jpegs")
    if not len(table) or decode is None or find() is None:
        return list(range(len(table)))
    table[:, 10:15] = windows
    place_results(results, interleaved, table[:, 15:])
    try:
        own = _threads.decompressor
    except AttributeError:  # the first JPEG of this thread
        own = _threads.decompressor = _Decompressor()
    how = ANTIALIASED if antialias else LINEAR
    num_left = decode(
        own.functions,
        ctypes.byref(own.handle),
        buffer_of(table),
        len(table),
        scaling(results, how, interleaved),
    )
    return np.flatnonzero(table[:, LEFT]).tolist() if num_left else []


@cache
def find() -> Any | None:
    """Return the library, or None."""
    for name in _candidates():
        try:
            library = ctypes.CDLL(name)
            library.tj3Init.restype = ctypes.c_void_p
            library.tj3Destroy.argtypes = (ctypes.c_void_p,)
            for function in FUNCTIONS:
                getattr(library, function)
        except (OSError, AttributeError):  # missing, or older than 3.0
            continue
        return library
    return None


def _candidates() -> Iterator[str]:
    """Yield the package's own library, then the system's, for which gcc and ld are started."""
    spec = importlib.util.find_spec("turbojpeg")
    if spec is not None and spec.origin is not None:
        for pattern in ("turbojpeg.libs/libturbojpeg*", ".dylibs/libturbojpeg*"):
            yield from sorted(map(str, Path(spec.origin).parent.glob(pattern)))
    yield find_library("turbojpeg") or "libturbojpeg.so"


class _Decompressor:
    """A decompressor of the library, and its functions. Each thread has its own."""

    def __init__(self) -> None:
        self._library: Any = find()
        self.handle = ctypes.c_void_p(self._library.tj3Init(DECOMPRESS))  # C may replace it
        own = [ctypes.cast(getattr(self._library, name), ctypes.c_void_p) for name in FUNCTIONS]
        self.functions = (ctypes.c_void_p * len(own))(*(function.value for function in own))

    def __del__(self) -> None:
        self._library.tj3Destroy(self.handle)


_threads = threading.local()
