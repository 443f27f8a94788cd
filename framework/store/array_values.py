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
        shape, fortran, dtype = _shape_in_header(file)
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
    if name.lower().endswith(".npy"):
        return array_of_npy(data, where)
    return data


def _shape_in_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape, whether it is in Fortran's order, and the dtype. One of ``BROKEN``."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"version {version}")
