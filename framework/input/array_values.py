"""Items' values to records: bytes are an image file, and arrays are arrays.

The first readable item decides the fields of all others.
"""

import io
import math
import tokenize
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from framework.contracts.records import Chunk, Field, Records
from framework.errors import DataError
from framework.image.decode import BadImage, num_channels

Row = dict[str, Any]  # one record: a field is ``bytes`` (an image file) or a NumPy array
INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
FLOATS = {"float16", "float32", "float64", "complex64", "complex128"}
DTYPES = {"bool", *INTEGERS, *FLOATS}  # those of torch
# NumPy reads a header as a Python literal, and raises these for a damaged one.
LITERAL_ERRORS = (LookupError, ArithmeticError, RecursionError, SyntaxError, tokenize.TokenError)
BROKEN = (ValueError, EOFError, OSError, TypeError, MemoryError, *LITERAL_ERRORS)
TRIES = 100  # bad items before the error of the first one is raised


def text_mapping(option: Any) -> dict[str, str]:
    """Return an option that maps fields to texts; {} if it is not a mapping."""
    if not isinstance(option, Mapping):
        return {}
    return {str(field): str(text) for field, text in option.items()}


class ArrayHeader(NamedTuple):
    """The header of a .npy file. The numbers start ``start`` bytes behind its begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(file: BinaryIO, where: str) -> ArrayHeader:
    """Read the header of the .npy file at the position of ``file``.

    Raises:
        DataError: D112 if it is not a header of plain numbers.

    """
    begin = file.tell()
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"version {version}")
    except BROKEN as error:
        raise not_arrays(where, f"{error}") from error
    if dtype.name not in DTYPES or any(size < 0 for size in shape):
        raise not_arrays(where, f"{dtype} {shape}")
    return ArrayHeader(shape, fortran, dtype, file.tell() - begin)


def not_arrays(where: str, what: str) -> DataError:
    fix = "save numbers with numpy.save or numpy.savez(path, x=..., label=...)"
    return DataError(112, where, f"not plain arrays ({what})", fix)


def array_of_npy(data: bytes, where: str) -> np.ndarray:
    """Return the array in a .npy file's bytes.

    Nothing is unpickled, and no more memory is taken than ``data`` fills.

    Raises:
        DataError: D112 if the bytes are not plain numbers.

    """
    header = read_npy_header(io.BytesIO(data), where)
    check_num_bytes(header, len(data), where)
    array = np.frombuffer(data, header.dtype, offset=header.start)
    return native(array.reshape(header.shape, order="F" if header.fortran else "C"))


def check_num_bytes(header: ArrayHeader, size: int, where: str) -> None:
    """Check that a .npy file of ``size`` bytes holds the array of its header. DataError D112."""
    present = size - header.start
    if present != header.num_bytes:
        what = f"{header.dtype} {header.shape} wants {header.num_bytes} bytes, have {present}"
        raise not_arrays(where, what)


def native(array: np.ndarray) -> np.ndarray:
    """Return the same numbers, contiguous, in this machine's byte order."""
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def value_of(data: bytes, name: str, where: str) -> bytes | np.ndarray:
    """Return the array of a .npy file, or the bytes of any other file."""
    return array_of_npy(data, where) if name.lower().endswith(".npy") else data


def field_of(value: Any, where: str) -> Field:
    """Return the field of a value.

    Raises:
        DataError: D106 for bytes that are not an image, D167 for a value that no store holds.

    """
    if isinstance(value, bytes):
        try:
            return Field("uint8", (num_channels(value), None, None), "image")
        except (BadImage, ValueError) as error:
            what = f"not a readable image ({error})"
            raise DataError(106, where, what, "mend or remove it") from error
    if not isinstance(value, np.ndarray) or value.dtype.name not in DTYPES:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        fix = "give arrays of plain numbers, or an image file's bytes"
        raise DataError(167, where, f"is {kind}", fix)
    return Field(value.dtype.name, value.shape)


def first_fields(
    num_items: int, rows: Callable[[int], Sequence[Row]], name: Callable[[int], str]
) -> dict[str, Field]:
    """Return the fields of the first record of the first readable item.

    Raises:
        DataError: That of the first bad item, if no item is readable.

    """
    first: DataError | None = None
    num_bad = 0
    for index in range(num_items):
        try:
            for row in rows(index)[:1]:
                return {
                    field: field_of(value, f"{name(index)}: {field}")
                    for field, value in row.items()
                }
        except DataError as error:
            first = first or error
            num_bad += 1
            if num_bad == TRIES:
                break
    raise first or DataError(110, name(0), "no item gives a record", "look at what is packed")


def chunk_of(
    rows: Sequence[Row], keys: list[str], fields: Mapping[str, Field], name: Callable[[int], str]
) -> Chunk:
    """Return rows as a chunk. ``name(i)`` is the name of row ``i`` in an error.

    Raises:
        DataError: D167 for a row that does not have the ``fields``.

    """
    for number, row in enumerate(rows):
        if row.keys() != fields.keys():
            what = (
                f"has the fields {', '.join(sorted(row))}, "
                f"the first record {', '.join(sorted(fields))}"
            )
            raise DataError(167, name(number), what, "give every record the same fields")
    records: Records = {}
    for field_name, field in fields.items():
        values = [row[field_name] for row in rows]
        for number, value in enumerate(values):
            _check(value, field, f"{name(number)}: {field_name}")
        if field.encoding == "image":
            records[field_name] = values
        elif values:
            records[field_name] = np.stack(values)
        else:
            records[field_name] = np.empty((0, *(size or 0 for size in field.shape)), field.dtype)
    return Chunk(records, keys)


def _check(value: Any, field: Field, where: str) -> None:
    is_image = field.encoding == "image"
    if is_image and isinstance(value, bytes):
        return
    given = type(value).__name__
    if isinstance(value, np.ndarray):
        given = f"{value.dtype} {value.shape}"
    wanted = "an image file's bytes" if is_image else f"{field.dtype} {tuple(field.shape)}"
    if given != wanted:
        what = f"is {given}, the first record's is {wanted}"
        raise DataError(167, where, what, "give every record the same shape and type")
