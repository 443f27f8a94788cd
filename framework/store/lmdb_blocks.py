"""Blocks: the values of an LMDB store whose records are arrays of one size with numbers as keys.

A value per record would cost a search, a header and, from half a page on, whole pages for each. So
a value holds many consecutive records, under the number of the first one (8 bytes, big-endian). It
consists of the arrays of each field, in the manifest's order, and then of the records' checksums
(uint32, little-endian). Each of these parts is padded to 8 bytes. All blocks but the last have
equally many records. A checksum covers the fields and the number of the record, so that it also
detects a block in a wrong place.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Manifest, Placed, Records
from framework.errors import DataError
from framework.store.checksum import content_crcs, mismatches, numbered_crcs
from framework.store.file_store import check_range
from framework.store.gather import Gather
from framework.store.lmdb_btree import NumberedValues

BLOCK_BYTES = 1 << 20  # 100 million records of 16 bytes are 1,908 blocks
CRC = np.dtype("<u4")


def fits_blocks(fields: Mapping[str, Field]) -> bool:
    """Return whether records with these fields are stored in blocks if their keys are numbers."""
    return all(field.encoding == "raw" for field in fields.values())


class BlockValue(NamedTuple):
    """The number of a block's first record, and the value."""

    start: int
    value: bytes


@final
class BlockBuffer:
    """Records that wait until they fill a block."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        record_bytes = CRC.itemsize + sum(map(_num_bytes, fields.values()))
        self.capacity = max(1, BLOCK_BYTES // record_bytes)
        self._start = 0  # the number of the first record that waits
        self._count = 0
        self._columns = {
            name: np.empty((self.capacity, *_shape(field)), field.dtype)
            for name, field in fields.items()
        }
        self._crcs = np.empty(self.capacity, np.uint32)

    def add(self, records: Records, crcs: np.ndarray) -> list[BlockValue]:
        """Add records with the checksums of their fields, and return the blocks that are full."""
        blocks: list[BlockValue] = []
        taken = 0
        while taken < len(crcs):
            count = min(self.capacity - self._count, len(crcs) - taken)
            here = slice(self._count, self._count + count)
            there = slice(taken, taken + count)
            for name, column in self._columns.items():
                column[here] = records[name][there]
            self._crcs[here] = crcs[there]
            self._count += count
            taken += count
            if self._count == self.capacity:
                blocks += self.rest()
        return blocks

    def rest(self) -> list[BlockValue]:
        """Return a block of the records that wait, if any does."""
        if not self._count:
            return []
        numbers = np.arange(self._start, self._start + self._count)
        crcs = numbered_crcs(self._crcs[: self._count], numbers).astype(CRC)
        parts = [column[: self._count].tobytes() for column in self._columns.values()]
        value = b"".join(part.ljust(_padded(len(part)), b"\0") for part in (*parts, crcs.tobytes()))
        block = BlockValue(self._start, value)
        self._start += self._count
        self._count = 0
        return [block]


class Rows(NamedTuple):
    """Where records are: the number of each one's block, and its place in the block (int64 [B])."""

    blocks: Tensor
    places: Tensor


@final
class Blocks:
    """The blocks of a mapped file.

    Args:
        path: Of the file, for errors.
        file: The map: uint8 [size].
        manifest: Of the store.
        table: The blocks, by the number of their first record.

    Raises:
        DataError: D105 if the blocks do not hold the records of the manifest.
    """

    def __init__(
        self,
        path: str,
        file: np.ndarray,
        manifest: Manifest,
        table: NumberedValues,
    ) -> None:
        keys, offsets, sizes = table
        self.manifest = manifest
        self.file = file
        self.count = manifest.num_records
        self.capacity = int(keys[1]) if len(keys) > 1 else max(1, self.count)
        *whole, full_bytes = _parts(manifest.fields, self.capacity)
        last_count = self.count - self.capacity * (len(keys) - 1)
        *last, last_bytes = _parts(manifest.fields, last_count)
        wanted = [full_bytes] * (len(keys) - 1) + [last_bytes] * min(1, len(keys))
        is_numbered = keys.tolist() == list(range(0, self.count, self.capacity))
        if not is_numbered or sizes.tolist() != wanted:
            what = f"its blocks do not hold the {self.count} records of its manifest"
            raise DataError(105, path, what, "pack it again")
        # Where each part of each block begins. Those of the last block may be shorter.
        begins = torch.from_numpy(offsets) + torch.tensor(whole)[:, None]
        if len(keys):
            begins[:, -1] = int(offsets[-1]) + torch.tensor(last)
        fields = manifest.fields.items()
        self._begins = dict(zip((*manifest.fields, ""), begins.unbind(0), strict=True))
        flat = torch.from_numpy(file)
        self._gathers = {
            name: Gather(flat, 1, _shape(field), torch.from_numpy(np.empty(0, field.dtype)).dtype)
            for name, field in fields
        }
        self._gather_crcs = Gather(flat, 1, (), torch.int32)

    def rows(self, indices: Tensor) -> Rows:
        """Return where the records are. IndexError if one does not exist."""
        check_range(indices, self.count)
        blocks = indices // self.capacity
        return Rows(blocks, indices - blocks * self.capacity)

    def column(self, name: str, rows: Rows) -> Tensor:
        """Return the values of a field: [B, *shape]."""
        return self._gathers[name](self.starts(name, rows))

    def ask(self, rows: Rows) -> None:
        """Ask the disk for the records."""
        for name, gather in self._gathers.items():
            gather.ask(self.starts(name, rows))

    def starts(self, name: str, rows: Rows) -> Tensor:
        """Return the byte of the file where each value of a field begins: int64 [B]."""
        return self._begins[name][rows.blocks] + rows.places * self._gathers[name].num_bytes

    def views(self, name: str, rows: Rows) -> Placed:
        """Return the values of a field in the map, without copying them."""
        field = self.manifest.fields[name]
        shape = _shape(field)
        starts = self.starts(name, rows).numpy()
        lengths = np.full(len(starts), _num_bytes(field))

        def view(start: int, size: int) -> np.ndarray:
            return self.file[start : start + size].view(field.dtype).reshape(shape)

        return Placed(self.file.ctypes.data, starts, lengths, view)

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        """Return the ``indices`` whose ``records`` differ from their checksum."""
        rows = self.rows(indices)
        crcs = numbered_crcs(content_crcs(records, self.manifest.fields), indices.numpy())
        stored = self._gather_crcs(self._begins[""][rows.blocks] + rows.places * CRC.itemsize)
        return mismatches(indices, crcs, stored.numpy().view(CRC))


def _parts(fields: Mapping[str, Field], count: int) -> list[int]:
    """Return where each field, the checksums, and nothing more begin in a block of records."""
    starts = [0]
    for size in (*map(_num_bytes, fields.values()), CRC.itemsize):
        starts.append(starts[-1] + _padded(count * size))
    return starts


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def _num_bytes(field: Field) -> int:
    return math.prod(_shape(field)) * np.dtype(field.dtype).itemsize


def _shape(field: Field) -> tuple[int, ...]:
    return tuple(size or 0 for size in field.shape)
