"""libjpeg-turbo's own interface (TurboJPEG 3), for what no Python package offers: decoding only a region of a JPEG, at a scale, into given memory.

Rows below the region are not read at all, rows above and columns beside it are read but not transformed. The pixels are those of
decoding all and cutting: chroma is interpolated between neighbors, so a margin is decoded around the region and left out.
The library comes in the wheel of the package ``turbojpeg`` (the extra ``turbo``) or from the system; without it, ``find`` is None.
"""

import ctypes
import importlib.util
import threading
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DECOMPRESS, SUBSAMPLING, WIDTH, HEIGHT, PRECISION, COLORSPACE, LOSSLESS = (
    1,
    4,
    5,
    6,
    7,
    8,
    15,
)  # turbojpeg.h: enum TJPARAM
RGB, GRAY = 0, 6  # enum TJPF
CONVERTIBLE = {0, 1, 2}  # enum TJCS: RGB, YCbCr, gray; not CMYK or YCCK
BLOCK_WIDTHS = {
    0: 8,
    1: 16,
    2: 16,
    3: 8,
    4: 8,
    5: 32,
    6: 8,
}  # enum TJSAMP: pixels of a whole block row's unit
MARGIN = 2  # pixels: chroma is interpolated from the next sample on each side


class _Scaling(ctypes.Structure):
    _fields_ = (("num", ctypes.c_int), ("denom", ctypes.c_int))


class _Region(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("w", ctypes.c_int), ("h", ctypes.c_int))


class _Library(NamedTuple):
    """``quick`` keeps Python's lock, ``long`` gives it to other threads meanwhile: which costs more than most calls take."""

    quick: Any
    long: Any


class Region(NamedTuple):
    """Where in the scaled image, in its pixels; ``denominator``: 1, 2, 4 or 8, by which the image is scaled down."""

    top: int
    left: int
    height: int
    width: int
    denominator: int


@cache
def find() -> Any:
    """The library with its functions declared, or None."""
    for name in _candidates():
        try:
            return _Library(_declared(ctypes.PyDLL(name)), _declared(ctypes.CDLL(name)))
        except (OSError, AttributeError):  # not there, or older than 3.0
            continue
    return None


def _candidates() -> list[str]:
    spec = importlib.util.find_spec("turbojpeg")
    folders = [] if spec is None or spec.origin is None else [Path(spec.origin).parent]
    bundled = [
        str(path)
        for folder in folders
        for path in sorted(folder.glob("turbojpeg.libs/libturbojpeg*"))
    ]
    bundled += [
        str(path) for folder in folders for path in sorted(folder.glob(".dylibs/libturbojpeg*"))
    ]
    system = find_library("turbojpeg")
    return bundled if system is None else [*bundled, system]


def _declared(library: Any) -> Any:
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    signatures = {
        "tj3Init": (pointer, number),
        "tj3Get": (number, pointer, number),
        "tj3DecompressHeader": (number, pointer, pointer, size),
        "tj3SetScalingFactor": (number, pointer, _Scaling),
        "tj3SetCroppingRegion": (number, pointer, _Region),
        "tj3Decompress8": (number, pointer, pointer, size, pointer, number, number),
        "tj3GetErrorStr": (ctypes.c_char_p, pointer),
        "tj3Destroy": (None, pointer),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Decompressor:
    """A decompressor and its memory, of one thread; gone with it."""

    def __init__(self) -> None:
        self.library, self.long = find()
        self.handle: Any = self.library.tj3Init(DECOMPRESS)
        self.memory = np.empty(1 << 20, np.uint8)

    def take(self, num_bytes: int) -> np.ndarray:
        """Memory of this thread, valid until the next call."""
        if self.memory.size < num_bytes:
            self.memory = np.empty(2 * num_bytes, np.uint8)
        return self.memory[:num_bytes]

    def __del__(self) -> None:
        self.library.tj3Destroy(self.handle)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.decompressor = (
            _Decompressor()
        )  # an object of its own: a thread's end deletes what its local holds, not the local


_thread: Any = None


def decode_region(data: Any, channels: int, region: Region) -> np.ndarray | None:
    """uint8 [height, width, channels] of a JPEG's ``region``, in memory that the thread's next call overwrites.

    None: the library cannot convert this file's colors (CMYK, lossless, 12 bits), or found it damaged; decode it another way.
    """
    state = _state()
    library, handle = state.library, state.handle
    source = np.frombuffer(data, np.uint8)
    address = source.ctypes.data
    library.tj3SetScalingFactor(handle, _Scaling(1, 1))
    library.tj3SetCroppingRegion(handle, _Region(0, 0, 0, 0))
    if library.tj3DecompressHeader(handle, address, source.size) or not _convertible(
        library, handle
    ):
        return None
    outer = _with_margin(library, handle, region)
    library.tj3SetScalingFactor(handle, _Scaling(1, region.denominator))
    library.tj3SetCroppingRegion(handle, outer)
    pixels = state.take(outer.h * outer.w * channels).reshape(outer.h, outer.w, channels)
    form = RGB if channels == 3 else GRAY
    if state.long.tj3Decompress8(handle, address, source.size, pixels.ctypes.data, 0, form):
        return None
    top, left = region.top - outer.y, region.left - outer.x
    return pixels[top : top + region.height, left : left + region.width]


def _state() -> Any:
    global _thread  # noqa: PLW0603  # made at the first JPEG: finding the library takes a millisecond
    if _thread is None:
        _thread = _Thread()
    return _thread.decompressor


def _convertible(library: Any, handle: Any) -> bool:
    return (
        library.tj3Get(handle, COLORSPACE) in CONVERTIBLE
        and library.tj3Get(handle, PRECISION) == 8
        and not library.tj3Get(handle, LOSSLESS)
        and library.tj3Get(handle, SUBSAMPLING) in BLOCK_WIDTHS
    )


def _with_margin(library: Any, handle: Any, region: Region) -> Any:
    """The region grown to where the library may begin (whole blocks) and by what interpolation looks at."""
    block = max(1, BLOCK_WIDTHS[library.tj3Get(handle, SUBSAMPLING)] // region.denominator)
    height = -(-library.tj3Get(handle, HEIGHT) // region.denominator)
    width = -(-library.tj3Get(handle, WIDTH) // region.denominator)
    left = max(0, region.left - MARGIN) // block * block
    top = max(0, region.top - MARGIN)
    right = min(width, region.left + region.width + MARGIN)
    bottom = min(height, region.top + region.height + MARGIN)
    return _Region(left, top, right - left, bottom - top)
