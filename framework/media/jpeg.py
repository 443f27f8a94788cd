"""Reads slices of JPEGs in C, which holds Python's lock for no image.

Beside a GPU, a thread that holds the lock stops the thread that launches the step's kernels. So
there is one call for the headers of a slice, and one for its pixels. What C does not read is left
to ``decode.window_pixels``, image by image.

C calls libjpeg-turbo's own interface (TurboJPEG 3), which comes with the package ``turbojpeg`` (the
extra ``turbo``) or the system. Without it, ``find`` returns None, and all images are left.
"""

import ctypes
import importlib.util
import threading
from collections.abc import Sequence
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from framework.contracts.records import Placed
from framework.media.decode import MAX_PIXELS
from framework.media.scale import ANTIALIASED, LINEAR, buffer_of, place_results, scaling
from framework.system import native

MOST_CHANNELS = 255  # that a header can say
DECOMPRESS = 1  # turbojpeg.h
# In the order in which native/images.c has them.
FUNCTIONS = (
    *("tj3Init", "tj3Get", "tj3DecompressHeader", "tj3SetScalingFactor"),
    *("tj3SetCroppingRegion", "tj3Decompress8", "tj3Destroy"),
)


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
        arrays = [np.frombuffer(file, np.uint8) for file in files]
        table[:, :2] = [(array.ctypes.data, array.nbytes) for array in arrays]
    headers = Headers(table)
    read = native.find("paceline_image_headers")
    if read is None or find() is None:
        headers.left[:] = 1
    else:
        read(buffer_of(table), len(files), MAX_PIXELS, most_channels)
    return headers


def decode_windows(
    headers: Headers, windows: np.ndarray, antialias: bool, results: Any, interleaved: bool
) -> list[int]:
    """Decode, cut and scale a slice of files, except those that are ``left``.

    Each window is decoded at the smallest scale that covers its result, as by ``window_pixels``.

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
    return np.flatnonzero(headers.left).tolist() if num_left else []


@cache
def find() -> Any | None:
    """Return the library, or None."""
    names: list[str] = []
    spec = importlib.util.find_spec("turbojpeg")
    if spec is not None and spec.origin is not None:
        for pattern in ("turbojpeg.libs/libturbojpeg*", ".dylibs/libturbojpeg*"):
            names += sorted(map(str, Path(spec.origin).parent.glob(pattern)))
    return _loaded(names) or _loaded([find_library("turbojpeg") or ""])  # starts gcc and ld


def _loaded(names: Sequence[str]) -> Any | None:
    for name in filter(None, names):
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


class _Decompressor:
    """A decompressor of the library. Each thread has its own, which ends with it.

    Attributes:
        handle: The library's. C replaces it after a damaged file.
        functions: The addresses of ``FUNCTIONS``.
    """

    def __init__(self) -> None:
        self._library: Any = find()
        self.handle = ctypes.c_void_p(self._library.tj3Init(DECOMPRESS))
        own = [ctypes.cast(getattr(self._library, name), ctypes.c_void_p) for name in FUNCTIONS]
        self.functions = (ctypes.c_void_p * len(own))(*(function.value for function in own))

    def __del__(self) -> None:
        self._library.tj3Destroy(self.handle)


_threads = threading.local()
