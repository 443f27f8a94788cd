"""Items' values to records: bytes are an image file, arrays are arrays; the first item says what every other must be."""

import io
import math
import tokenize
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from framework.contracts.records import Chunk, Field, Records
from framework.errors import DataError
from framework.image.decode import BadImage, num_channels

Row = dict[str, Any]  # one record: a field is ``bytes`` (an image file) or a numpy array
DTYPES = {"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"} | {
    *("float16", "float32", "float64", "complex64", "complex128"),
}  # what torch has too
BROKEN = (
    *(
        ValueError,
        EOFError,
        OSError,
        TypeError,
        LookupError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ),
    *(SyntaxError, tokenize.TokenError),
)  # what numpy raises for a header that is none: it reads it as Python's own literals
TRIES = 100  # items looked at for a readable one, before the first one's error is believed


class ArrayHeader(NamedTuple):
    """Of a .npy file: where its numbers begin, and what they are."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(file: BinaryIO, where: str) -> ArrayHeader:
    """The header of the .npy file that begins where ``file`` stands. DataError D112 where it is not one of plain numbers."""
    begin = file.tell()
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version}")
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
    except BROKEN as error:
        raise not_arrays(where, f"{error}") from error
    if dtype.name not in DTYPES or any(size < 0 for size in shape):
        raise not_arrays(where, f"{dtype} {shape}")
    return ArrayHeader(shape, fortran, dtype, file.tell() - begin)


def not_arrays(where: str, what: str) -> DataError:
    return DataError(
        112,
        where,
        f"not plain arrays ({what})",
        "save numbers with numpy.save or numpy.savez(path, x=..., label=...)",
    )


def array_of_npy(data: bytes, where: str) -> np.ndarray:
    """The array in a .npy file's bytes; nothing is unpickled, and no memory is taken that ``data`` does not fill. DataError D112."""
    header = read_npy_header(io.BytesIO(data), where)
    if header.start + header.num_bytes != len(data):
        raise not_arrays(
            where,
            f"{header.dtype} {header.shape} wants {header.num_bytes} bytes, have {len(data) - header.start}",
        )
    array = np.frombuffer(data, header.dtype, offset=header.start)
    return native(array.reshape(header.shape, order="F" if header.fortran else "C"))


def native(array: np.ndarray) -> np.ndarray:
    """The same numbers, contiguous, in this machine's byte order."""
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def value_of(data: bytes, name: str, where: str) -> bytes | np.ndarray:
    """A file's bytes as a value: an array where ``name`` ends in .npy, else an image file as it is."""
    return array_of_npy(data, where) if name.lower().endswith(".npy") else data


def field_of(value: Any, where: str) -> Field:
    """What a value says of its field. DataError D106 for bytes that are no image, D167 for what no store holds."""
    if isinstance(value, bytes):
        try:
            return Field("uint8", (num_channels(value), None, None), "image")
        except (BadImage, ValueError) as error:
            raise DataError(
                106, where, f"not a readable image ({error})", "mend or remove it"
            ) from error
    if not isinstance(value, np.ndarray) or value.dtype.name not in DTYPES:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise DataError(
            167, where, f"is {kind}", "give arrays of plain numbers, or an image file's bytes"
        )
    return Field(value.dtype.name, value.shape)


def first_fields(
    num_items: int, rows: Callable[[int], Sequence[Row]], name: Callable[[int], str]
) -> dict[str, Field]:
    """The fields, from the first item that can be read and gives a record. DataError: that of the first item that could not be."""
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
            first, num_bad = first or error, num_bad + 1
            if num_bad == TRIES:
                break
    raise first or DataError(110, name(0), "no item gives a record", "look at what is packed")


def chunk_of(
    rows: Sequence[Row], keys: list[str], fields: Mapping[str, Field], name: Callable[[int], str]
) -> Chunk:
    """Rows as a chunk. DataError D167 where a row differs from ``fields``; ``name(i)`` is what to call row ``i``."""
    for number, row in enumerate(rows):
        if row.keys() != fields.keys():
            what = f"has the fields {', '.join(sorted(row))}, the first record {', '.join(sorted(fields))}"
            raise DataError(167, name(number), what, "give every record the same fields")
    records: Records = {}
    for field_name, field in fields.items():
        values = [row[field_name] for row in rows]
        for number, value in enumerate(values):
            _check(value, field, f"{name(number)}: {field_name}")
        records[field_name] = values if field.encoding == "image" else _stacked(values, field)
    return Chunk(records, keys)


def _check(value: Any, field: Field, where: str) -> None:
    if field.encoding == "image" and isinstance(value, bytes):
        return
    found = (
        f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    )
    wanted = (
        "an image file's bytes"
        if field.encoding == "image"
        else f"{field.dtype} {tuple(field.shape)}"
    )
    if found != wanted:
        raise DataError(
            167,
            where,
            f"is {found}, the first record's is {wanted}",
            "give every record the same shape and type",
        )


def _stacked(values: list[np.ndarray], field: Field) -> np.ndarray:
    shape = tuple(size or 0 for size in field.shape)
    return np.stack(values) if values else np.empty((0, *shape), field.dtype)
