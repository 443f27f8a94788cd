"""Decodes a region of a JPEG at a scale, through libjpeg-turbo's own interface (TurboJPEG 3).

No Python package offers this. Rows below the region are not read. Rows above it and columns beside
it are read but not transformed. The pixels equal those of decoding all and cutting: chroma is
interpolated between neighbors, so a margin around the region is decoded too, and then left out.

The library comes with the package ``turbojpeg`` (the extra ``turbo``) or the system. Without it,
``find`` returns None.
"""

import ctypes
import importlib.util
import threading
from collections.abc import Iterator
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# turbojpeg.h: enum TJPARAM
DECOMPRESS, SUBSAMPLING, WIDTH, HEIGHT, PRECISION, COLORSPACE, LOSSLESS = 1, 4, 5, 6, 7, 8, 15
RGB, GRAY = 0, 6  # enum TJPF
CONVERTIBLE = {0, 1, 2}  # enum TJCS: RGB, YCbCr, gray; not CMYK or YCCK
# enum TJSAMP: the width of a block of all components, in pixels
BLOCK_WIDTHS = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32, 6: 8}
MARGIN = 2  # pixels: chroma is interpolated from the next sample on each side


class Region(NamedTuple):
    """A rectangle in pixels of an image that is scaled down by ``denominator``: 1, 2, 4 or 8."""

    top: int
    left: int
    height: int
    width: int
    denominator: int


class _Scaling(ctypes.Structure):
    _fields_ = (("num", ctypes.c_int), ("denom", ctypes.c_int))


class _Region(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("w", ctypes.c_int), ("h", ctypes.c_int))


# In the order in which native/images.c has them.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "tj3Init": (ctypes.c_void_p, ctypes.c_int),
    "tj3Get": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
    "tj3DecompressHeader": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    "tj3SetScalingFactor": (ctypes.c_int, ctypes.c_void_p, _Scaling),
    "tj3SetCroppingRegion": (ctypes.c_int, ctypes.c_void_p, _Region),
    "tj3Decompress8": (
        ctypes.c_int,
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
        *(ctypes.c_int, ctypes.c_int),
    ),
    "tj3Destroy": (None, ctypes.c_void_p),
}


class _Library(NamedTuple):
    """The library, loaded twice."""

    quick: Any  # its calls keep the GIL, because releasing it costs more than most calls take
    long: Any  # its calls release the GIL


@cache
def find() -> _Library | None:
    """Return the library with its functions declared, or None."""
    for name in _candidates():
        try:
            return _Library(_declared(ctypes.PyDLL(name)), _declared(ctypes.CDLL(name)))
        except (OSError, AttributeError):  # missing, or older than 3.0
            continue
    return None


def decode_region(data: Any, channels: int, region: Region) -> np.ndarray | None:
    """Return a region as uint8 [height, width, channels], in memory that the next call overwrites.

    None if the library cannot convert the colors (CMYK, lossless, 12 bits) or the file is damaged:
    decode it another way.
    """
    state = decompressor()
    library, handle = state.library, state.handle
    source = np.frombuffer(data, np.uint8)
    address = source.ctypes.data
    library.tj3SetScalingFactor(handle, _Scaling(1, 1))
    library.tj3SetCroppingRegion(handle, _Region(0, 0, 0, 0))
    if library.tj3DecompressHeader(handle, address, source.size):
        _forget_state()
        return None
    if not _is_convertible(library, handle):
        return None
    outer = _with_margin(library, handle, region)
    library.tj3SetScalingFactor(handle, _Scaling(1, region.denominator))
    library.tj3SetCroppingRegion(handle, outer)
    pixels = state.take(outer.h * outer.w * channels).reshape(outer.h, outer.w, channels)
    form = RGB if channels == 3 else GRAY
    if state.long.tj3Decompress8(handle, address, source.size, pixels.ctypes.data, 0, form):
        _forget_state()
        return None
    top = region.top - outer.y
    left = region.left - outer.x
    return pixels[top : top + region.height, left : left + region.width]


def _candidates() -> Iterator[str]:
    """Yield the package's own library, then the system's, for which gcc and ld are started."""
    spec = importlib.util.find_spec("turbojpeg")
    if spec is not None and spec.origin is not None:
        for pattern in ("turbojpeg.libs/libturbojpeg*", ".dylibs/libturbojpeg*"):
            yield from sorted(map(str, Path(spec.origin).parent.glob(pattern)))
    if system := find_library("turbojpeg"):
        yield system


def _declared(library: Any) -> Any:
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class Decompressor:
    """A decompressor and its memory. Each thread has its own, which ends with it.

    Attributes:
        handle: The library's. C replaces it after a damaged file.
        functions: The addresses of the library's functions, in the order of ``SIGNATURES``.
    """

    def __init__(self) -> None:
        library = find()
        assert library is not None
        self.library, self.long = library
        self.handle = ctypes.c_void_p(self.library.tj3Init(DECOMPRESS))
        addresses = [ctypes.cast(getattr(self.long, name), ctypes.c_void_p) for name in SIGNATURES]
        self.functions = (ctypes.c_void_p * len(addresses))(*(own.value for own in addresses))
        self.memory = np.empty(1 << 20, np.uint8)

    def take(self, num_bytes: int) -> np.ndarray:
        """Return memory that is valid until the next call."""
        if self.memory.size < num_bytes:
            self.memory = np.empty(2 * num_bytes, np.uint8)
        return self.memory[:num_bytes]

    def __del__(self) -> None:
        self.library.tj3Destroy(self.handle)


_threads = threading.local()


def decompressor() -> Decompressor:
    """Return the decompressor of this thread."""
    try:
        return _threads.decompressor
    except AttributeError:  # the first JPEG of this thread
        _threads.decompressor = Decompressor()
        return _threads.decompressor


def _forget_state() -> None:
    """Let the next call make a decompressor. One that met a damaged header reads no file again."""
    del _threads.decompressor


def _is_convertible(library: Any, handle: Any) -> bool:
    return (
        library.tj3Get(handle, COLORSPACE) in CONVERTIBLE
        and library.tj3Get(handle, PRECISION) == 8
        and not library.tj3Get(handle, LOSSLESS)
        and library.tj3Get(handle, SUBSAMPLING) in BLOCK_WIDTHS
    )


def _with_margin(library: Any, handle: Any, region: Region) -> Any:
    """Extend a region by what interpolation needs, to where the library may begin: whole blocks."""
    block = max(1, BLOCK_WIDTHS[library.tj3Get(handle, SUBSAMPLING)] // region.denominator)
    height = -(-library.tj3Get(handle, HEIGHT) // region.denominator)
    width = -(-library.tj3Get(handle, WIDTH) // region.denominator)
    left = max(0, region.left - MARGIN) // block * block
    top = max(0, region.top - MARGIN)
    right = min(width, region.left + region.width + MARGIN)
    bottom = min(height, region.top + region.height + MARGIN)
    return _Region(left, top, right - left, bottom - top)
