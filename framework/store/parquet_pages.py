"""How large the pages of a Parquet file are when they are decoded, from their own headers.

A page of a few bytes may stand for billions of numbers, whatever the file's footer says. pyarrow
tells that only after it has taken the memory, and ends the process if it is asked for the metadata
of a damaged column.

Source: parquet.thrift of the Parquet format, and Thrift's compact protocol.
"""

import os
import re
import struct
from typing import Any, NamedTuple, final

MAGIC = b"PAR1"
ITEM_BYTES = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 7: 16}  # by the number of the physical type
BYTE_ARRAY = 6
LEVEL_BYTES = 4  # of a value: how deep it lies in lists, and where a list begins
MOST_HEADER_BYTES = 16 << 20  # of a page; its statistics may hold long texts
MOST_DEPTH = 16
OLD = re.compile(rb"(?i)\s*parquet-mr(?!\s+version\s*(1\.[3-9]|1\.\d\d|[2-9]))")
# numbers of the fields of Thrift's structs
ROW_GROUPS, CREATED_BY, COLUMNS, META_DATA = 4, 6, 1, 3
TYPE, COMPRESSED, DATA_PAGE, DICTIONARY_PAGE = 1, 7, 9, 11
PAGE_BYTES, STORED_BYTES, NUM_VALUES = 2, 3, 1
DATA_HEADER, DICTIONARY_HEADER, DATA_HEADER_2 = 5, 7, 8


class DecodedSize(NamedTuple):
    """What the columns of a group of rows take.

    Attributes:
        num_bytes: Of the decompressed pages, and of their numbers.
        largest: The most bytes of a text or byte string that rows share in a dictionary.
    """

    num_bytes: int
    largest: int


@final
class ParquetPages:
    """The pages of a file. ValueError, LookupError or TypeError if they are damaged."""

    def __init__(self, path: str) -> None:
        self._path = path
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(size - 8)
            (length,) = struct.unpack("<I4x", file.read(8))
            file.seek(max(0, size - 8 - length))
            footer = _Thrift(file.read(length)).struct()
        # of these, Arrow reads a page that begins behind its column (PARQUET-816)
        if OLD.match(footer.get(CREATED_BY) or b""):
            raise ValueError("was written by a parquet-mr before 1.3")
        self._groups = [
            [column[META_DATA] for column in group[COLUMNS]] for group in footer[ROW_GROUPS]
        ]

    def decoded(self, group: int) -> DecodedSize:
        """Return the size of a group of rows."""
        total = largest = 0
        with open(self._path, "rb") as file:
            for column in self._groups[group]:
                place = min(column[DATA_PAGE], column.get(DICTIONARY_PAGE) or column[DATA_PAGE])
                end = place + column[COMPRESSED]
                item_bytes = LEVEL_BYTES + ITEM_BYTES.get(column[TYPE], 0)
                while place < end:
                    header, length = self._header(file, place)
                    total += header[PAGE_BYTES]
                    data = header.get(DATA_HEADER) or header.get(DATA_HEADER_2)
                    if data:
                        total += data[NUM_VALUES] * item_bytes
                    elif DICTIONARY_HEADER in header and column[TYPE] == BYTE_ARRAY:
                        largest = max(largest, header[PAGE_BYTES])
                    if min(header[PAGE_BYTES], header[STORED_BYTES], total) < 0:
                        raise ValueError("a page has a negative size")
                    place += length + header[STORED_BYTES]
        return DecodedSize(total, largest)

    def _header(self, file: Any, place: int) -> tuple[dict[int, Any], int]:
        """Return the header of the page at a place of the file, and its length."""
        size = 256
        while True:
            file.seek(place)
            thrift = _Thrift(file.read(size))
            try:
                return thrift.struct(), thrift.place
            except IndexError:
                if size > MOST_HEADER_BYTES or place + size > os.fstat(file.fileno()).st_size:
                    raise
            size *= 16


@final
class _Thrift:
    """Reads structs of Thrift's compact protocol: fields by number. IndexError at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > MOST_DEPTH:
            raise ValueError("structs are nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step = head >> 4
            number = number + step if step else self._zigzag()
            fields[number] = self._value(head & 15, depth + 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # true and false lie in the kind
            return kind == 1
        if kind in (3, 7):  # a byte, or a double
            return self._skip(1 if kind == 3 else 8)
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 8:
            return self._skip(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            if count > len(self._data):
                raise IndexError(count)
            # a boolean in a list is a byte
            item = 3 if head & 15 in (1, 2) else head & 15
            return [self._value(item, depth) for _ in range(count)]
        if kind == 12:
            return self.struct(depth)
        raise ValueError(f"a value of the kind {kind}")

    def _byte(self) -> int:
        self.place += 1
        return self._data[self.place - 1]

    def _varint(self) -> int:
        result = shift = 0
        while True:
            byte = self._byte()
            result |= (byte & 127) << shift
            if byte < 128:
                return result
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _skip(self, count: int) -> bytes:
        self.place += count
        if self.place > len(self._data):
            raise IndexError(self.place)
        return self._data[self.place - count : self.place]
