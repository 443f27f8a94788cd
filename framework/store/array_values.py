"""Arrays in .npy files: only plain numbers, of which nothing is unpickled."""

import io
import math
import mmap
import tokenize
from typing import BinaryIO, NamedTuple

import numpy as np

from framework.errors import DataError

INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
FLOATS = {"float16", "float32", "float64", "complex64", "complex128"}
DTYPES = {"bool", *INTEGERS, *FLOATS}  # those of torch
# NumPy reads a header as a Python literal, and raises these for a damaged one.
LITERAL_ERRORS = (LookupError, ArithmeticError, RecursionError, SyntaxError, tokenize.TokenError)
BROKEN = (ValueError, EOFError, OSError, TypeError, MemoryError, *LITERAL_ERRORS)
HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# Masks, the most compressible data that people keep, shrink 150 to 300 times. Deflate could
# shrink zeros 1032 times, and other formats any number of times.
MOST_EXPANSION = 300
MOST_SMALL_BYTES = 256 << 20  # which no reader minds, whatever the size of the file


def most_bytes(stored: int) -> int:
    """Return the most bytes that a part of ``stored`` bytes of a file may have if decompressed."""
    return max(MOST_SMALL_BYTES, MOST_EXPANSION * stored)


class ArrayHeader(NamedTuple):
    """The header of a .npy file. The numbers start ``start`` bytes behind its begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, data: bytes | memoryview | mmap.mmap, begin: int = 0) -> np.ndarray:
        """Return the array of the .npy file at byte ``begin`` of ``data``, without a copy."""
        flat = np.frombuffer(data, self.dtype, math.prod(self.shape), begin + self.start)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def read_npy_header(file: BinaryIO, size: int, where: str) -> ArrayHeader:
    """Read the header of the .npy file of ``size`` bytes at the position of ``file``.

    Raises:
        DataError: D112 if it is not a header of plain numbers, or their bytes are not all there.
    """
    begin = file.tell()
    try:
        shape, fortran, dtype = HEADER_READERS[np.lib.format.read_magic(file)](file)
    except BROKEN as error:
        raise not_arrays(where, f"{error}") from error
    if dtype.name not in DTYPES or any(length < 0 for length in shape):
        raise not_arrays(where, f"{dtype} {shape}")
    header = ArrayHeader(shape, fortran, dtype, file.tell() - begin)
    if size - header.start != header.num_bytes:
        what = f"{dtype} {shape} wants {header.num_bytes} bytes, have {size - header.start}"
        raise not_arrays(where, what)
    return header


def not_arrays(where: str, what: str) -> DataError:
    fix = "save numbers with numpy.save or numpy.savez(path, x=..., label=...)"
    return DataError(112, where, f"not plain arrays ({what})", fix)


def array_of_npy(data: bytes, where: str) -> np.ndarray:
    """Return the array in a .npy file's bytes. DataError D112 if they are not plain numbers."""
    return native(read_npy_header(io.BytesIO(data), len(data), where).view(data))


def native(array: np.ndarray) -> np.ndarray:
    """Return the same numbers, contiguous, in this machine's byte order."""
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def value_of(data: bytes, name: str, where: str) -> bytes | np.ndarray:
    """Return the array of a .npy file, or the bytes of any other file."""
    return array_of_npy(data, where) if name.lower().endswith(".npy") else data
