"""LMDB stores: one value per record under its number (8 bytes, big-endian), then the manifest.

A value consists of a header, the bytes of the fields, and the record's key. The header is uint32,
little-endian, padded to 8 bytes: a CRC32, the length of the key, and the length of each field in
the manifest's order. The CRC32 covers the fields, the number and the key, so that it also detects
a value in a wrong place. Files have LMDB 0.9's format, which every other reader knows.

Records that are arrays of one size, with numbers as keys, are stored in blocks: a value per record
would cost a search, a header and, from half a page on, whole pages for each. A block holds many
consecutive records, under the number of the first one. It consists of the arrays of each field, in
the manifest's order, and then of the records' checksums (uint32, little-endian), which cover the
number, too. Each of these parts is padded to 8 bytes. All blocks but the last have equally many
records.
"""

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, final

import lmdb
import numpy as np
import torch
from isal.isal_zlib import crc32
from torch import Tensor

from framework.contracts.records import Field, Manifest, Placed, Places, Ragged, Records
from framework.errors import DataError
from framework.store.file_store import (
    FileStore,
    FileWriter,
    buffers,
    check_range,
    content_crcs,
    from_json,
    mismatches,
    numbered_crcs,
)
from framework.store.foreign import lmdb_advice
from framework.store.gather import Gather, ask_pages, gather_rows, map_of, should_ask, typed
from framework.store.lmdb_btree import NumberedValues, read_meta, value_table
from framework.system.durable import abandon
from framework.system.native import find

MANIFEST_KEY = b"manifest"  # sorts after the key of every record
FIRST_MAP_BYTES = 64 << 20
# A transaction looks at pages of its map, around which the system maps others: some 60 kB each.
REMAP_BLOCKS = 64
MAX_VALUE_BYTES = (1 << 31) - 1  # LMDB's own limit is twice that; other readers stop here
BLOCK_BYTES = 1 << 20  # 100 million records of 16 bytes are 1,908 blocks
CRC = np.dtype("<u4")


@final
class LMDBStore(FileStore["Values | Blocks"]):
    """A RecordStore over one LMDB file."""

    choice = "lmdb"

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        opened = self._open()
        if should_ask():
            opened.ask(indices)
        return opened.read(indices, views)

    def column(self, name: str) -> Any:
        return self._open().column(name)

    def lengths(self, name: str) -> Tensor:
        start, stop = self._open().spans(name, torch.arange(self.manifest.num_records))
        return (stop - start) // _num_bytes(self.manifest.fields[name])

    def places(self, indices: Tensor) -> Places:
        opened = self._open()
        check_range(indices, self.manifest.num_records)
        raw = [name for name, field in self.manifest.fields.items() if field.encoding == "raw"]
        starts = {name: opened.spans(name, indices)[0] for name in raw}
        return Places(torch.zeros_like(indices), starts)

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return mismatches(indices, *self._open().crcs(indices, records))

    def _map(self) -> "Values | Blocks":
        """Map the file. DataError D102, D103 or D105 if it is no intact store."""
        meta = read_meta(self.path)
        # Mode "c" shares the page cache. Torch gets a writable array that cannot change the file.
        file = np.memmap(self.path, np.uint8, "c", shape=(meta.num_pages * meta.page_bytes,))
        is_foreign = "is an LMDB file, but not a Paceline store"
        try:
            keys, offsets, sizes = value_table(self.path, file, meta)
        except DataError as error:  # damaged, or with other keys than ours
            try:
                advice = lmdb_advice(self.path)
            except DataError:
                raise error from None
            raise DataError(103, self.path, is_foreign, advice) from error
        if not len(keys) or keys[-1] != int.from_bytes(MANIFEST_KEY, "big"):
            advice = lmdb_advice(self.path)
            raise DataError(103, self.path, is_foreign, advice)
        last = int(offsets[-1])
        manifest = from_json(self.path, bytes(file[last : last + int(sizes[-1])]))
        table = NumberedValues(keys[:-1], offsets[:-1], sizes[:-1])
        if manifest.first_key is not None and _fits_blocks(manifest.fields):
            return Blocks(self.path, file, manifest, table)
        return Values(self.path, file, manifest, table)


@final
class LMDBWriter(FileWriter):
    """A RecordWriter.

    The map grows by itself. Only ``close`` syncs: a temporary file may be lost.
    """

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        super().__init__(path, fields, num_records)
        self._can_number = _fits_blocks(fields)
        self._buffer: BlockBuffer | None = None
        self._num_blocks = 0
        options: dict[str, Any] = {"lock": False, "sync": False, "lib_version": 0, "max_dbs": 0}
        try:
            self._environment = lmdb.open(
                str(self._temporary), subdir=False, map_size=FIRST_MAP_BYTES, **options
            )
        except lmdb.Error as error:
            abandon(self._publish)
            raise OSError(28, f"LMDB cannot write ({error})") from error

    def _append(self, records: Records, keys: list[bytes] | None, crcs: np.ndarray) -> None:
        if keys is None:
            if self._buffer is None:
                self._buffer = BlockBuffer(self.fields)
            self._put_blocks(self._buffer.add(records, crcs))
            return
        columns = [buffers(values) for values in records.values()]
        items: list[tuple[bytes, bytes]] = []
        head_bytes = _head_bytes(len(columns))
        rows = zip(crcs.tolist(), keys, *columns, strict=True)
        for index, (content, key, *parts) in enumerate(rows, self._num_written):
            lengths = [len(key), *map(len, parts)]
            if sum(lengths) > MAX_VALUE_BYTES:
                where = f"{self.path}: record {index} ({key.decode(errors='surrogateescape')})"
                raise _too_large(where, sum(lengths))
            crc = _crc(content, index, key)
            head = struct.pack(f"<{1 + len(lengths)}I", crc, *lengths).ljust(head_bytes, b"\0")
            items.append((_number_key(index), b"".join((head, *parts, key))))
        self._put(items)

    def _put_blocks(self, blocks: Sequence["BlockValue"]) -> None:
        for start, value in blocks:
            self._num_blocks += 1
            if self._num_blocks % REMAP_BLOCKS == 0:  # the same size: only to map the file anew
                self._environment.set_mapsize(self._environment.info()["map_size"])
            if len(value) > MAX_VALUE_BYTES:
                raise _too_large(f"{self.path}: record {start}", len(value))
            self._put([(_number_key(start), value)])

    def _finish(self, manifest: str) -> None:
        if self._buffer is not None:
            self._put_blocks(self._buffer.rest())
        self._put([(MANIFEST_KEY, manifest.encode())])
        self._environment.sync(True)
        self._environment.close()

    def _drop(self) -> None:
        self._environment.close()

    def _put(self, items: list[tuple[bytes, bytes]]) -> None:
        """Write one transaction, and repeat it in a map of twice the size if the map is full."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in items:
                        transaction.put(key, value, append=True)
                return
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except lmdb.Error as error:  # LMDB reports a full disk as EIO, without its errno
                raise OSError(28, f"LMDB cannot write ({error})") from error


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
        self, path: str, file: np.ndarray, manifest: Manifest, table: NumberedValues
    ) -> None:
        keys, offsets, sizes = table
        self.file, self.manifest, self.count = file, manifest, manifest.num_records
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
        self._begins = dict(zip((*manifest.fields, ""), begins.unbind(0), strict=True))
        flat = torch.from_numpy(file)
        self._gathers = {name: _gather(flat, field) for name, field in manifest.fields.items()}
        self._gather_crcs = Gather(flat, 1, (), torch.int32)

    def read(self, indices: Tensor, views: Collection[str]) -> Records:
        blocks, places = self._rows(indices)
        records: Records = {}
        for name, gather in self._gathers.items():
            starts = self._begins[name][blocks] + places * gather.num_bytes
            if name in views:
                records[name] = _views(self.file, self.manifest.fields[name], starts)
            else:
                records[name] = gather(starts)
        return records

    def column(self, name: str) -> Tensor:
        return self._gathers[name](self.spans(name, torch.arange(self.count))[0])

    def spans(self, name: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return where each value of a field begins and ends in the file: int64 [B]."""
        blocks, places = self._rows(indices)
        num_bytes = self._gathers[name].num_bytes
        starts = self._begins[name][blocks] + places * num_bytes
        return starts, starts + num_bytes

    def ask(self, indices: Tensor) -> None:
        """Ask the disk for the records."""
        for name, gather in self._gathers.items():
            gather.ask(self.spans(name, indices)[0])

    def keys(self, indices: Tensor) -> Sequence[Any]:
        raise AssertionError(len(indices))  # they are numbers

    def crcs(self, indices: Tensor, records: Records) -> tuple[np.ndarray, np.ndarray]:
        """Return the checksums of ``records``, and the stored ones: uint32 [B]."""
        blocks, places = self._rows(indices)
        stored = self._gather_crcs(self._begins[""][blocks] + places * CRC.itemsize)
        crcs = numbered_crcs(content_crcs(records, self.manifest.fields), indices.numpy())
        return crcs, stored.numpy().view(CRC)

    def _rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of each record's block, and its place in the block: int64 [B]."""
        check_range(indices, self.count)
        blocks = indices // self.capacity
        return blocks, indices - blocks * self.capacity


@final
class Values:
    """A value for each record of a mapped file.

    Args and Raises are those of ``Blocks``; ``table`` has the values by the number of their record.
    """

    def __init__(
        self, path: str, file: np.ndarray, manifest: Manifest, table: NumberedValues
    ) -> None:
        keys, offsets, sizes = table
        self.path, self.file, self.manifest = path, file, manifest
        num_records = len(keys)
        is_numbered = np.array_equal(keys, np.arange(num_records, dtype=np.uint64))
        if manifest.num_records != num_records or not is_numbered:
            what = f"{num_records} records, its manifest says {manifest.num_records}"
            raise DataError(105, path, what, "pack it again")
        self.offsets, self.sizes = torch.from_numpy(offsets), torch.from_numpy(sizes)
        self._flat = flat = torch.from_numpy(file)
        self._address = file.ctypes.data
        buffer = memoryview(file)  # pyright: ignore[reportArgumentType]  # an array is a buffer
        self._view = lambda start, size: buffer[start : start + size]
        fields = manifest.fields
        self._numbers = {name: number for number, name in enumerate(fields)}
        self._head_bytes = _head_bytes(len(fields))
        self._gather_heads = Gather(flat, 1, (self._head_bytes // 4,), torch.int32)
        self._gathers = {
            name: _gather(flat, field) for name, field in fields.items() if field.encoding == "raw"
        }
        # The bytes of each field in each record; -1: any number. A hostile manifest may declare
        # more bytes than int64 holds. No record has so many.
        lengths = [
            min(self._gathers[name].num_bytes, len(file)) if name in self._gathers else -1
            for name in fields
        ]
        self._lengths = torch.tensor(lengths, dtype=torch.int64)
        # If all lengths are known, every record has its fields at the same places.
        is_fixed = -1 not in lengths
        self._fixed: list[int] | None = np.cumsum([0, *lengths]).tolist() if is_fixed else None
        self._check_heads: Any = find("paceline_lmdb_heads") if is_fixed else None

    def read(self, indices: Tensor, views: Collection[str]) -> Records:
        starts = self._starts(indices)
        records: Records = {}
        for number, (name, field) in enumerate(self.manifest.fields.items()):
            if name in views and name in self._gathers:
                records[name] = _views(self.file, field, starts[number])
            else:
                records[name] = self._column(name, indices, starts[number], starts[number + 1])
        return records

    def column(self, name: str) -> Any:
        indices = torch.arange(self.manifest.num_records)
        return self._column(name, indices, *self.spans(name, indices))

    def spans(self, name: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        number = self._numbers[name]
        start, stop = self._starts(indices)[number : number + 2]
        return start, stop

    def ask(self, indices: Tensor) -> None:
        ask_pages(map_of(self.file), self.offsets[indices], self.sizes[indices])

    def keys(self, indices: Tensor) -> Sequence[Any]:
        return self._parts(self._starts(indices)[-1], (self.offsets + self.sizes)[indices])

    def crcs(self, indices: Tensor, records: Records) -> tuple[np.ndarray, np.ndarray]:
        contents = content_crcs(records, self.manifest.fields).tolist()
        items = zip(contents, indices.tolist(), self.keys(indices), strict=True)
        crcs = [_crc(content, index, key) for content, index, key in items]
        return np.array(crcs, np.uint32), self._heads(indices)[:, 0].numpy().astype(np.uint32)

    def _heads(self, indices: Tensor) -> Tensor:
        """Return headers as int64 [B, 2 + fields]: CRC32, length of the key, of the fields."""
        is_short = self.sizes[indices] < self._head_bytes
        if is_short.any():
            raise self._misfit(indices, is_short)
        words = self._gather_heads(self.offsets[indices])
        return words[:, : 2 + len(self._numbers)].long() & 0xFFFFFFFF

    def _starts(self, indices: Tensor) -> list[Tensor]:
        """Return where each field begins in the file, and where the last one ends: int64 [B] each.

        The headers are checked.
        """
        if not len(indices):
            return [indices] * (len(self._numbers) + 1)
        if self._fixed is not None and self._check_heads is not None:
            begins = self._fixed_starts(indices)
            return [begins + start for start in self._fixed]
        lengths = self._heads(indices)[:, 1:]
        offsets = self.offsets[indices] + self._head_bytes
        is_bad = lengths.sum(1) != self.sizes[indices] - self._head_bytes
        is_bad |= ((lengths[:, 1:] != self._lengths) & (self._lengths >= 0)).any(1)
        if is_bad.any():
            raise self._misfit(indices, is_bad)
        if self._fixed is not None:
            return [offsets + start for start in self._fixed]
        return list(torch.cat([offsets.unsqueeze(1), lengths[:, 1:]], dim=1).cumsum(1).unbind(1))

    def _fixed_starts(self, indices: Tensor) -> Tensor:
        """Return where fields of known lengths begin: int64 [B]. The headers are checked."""
        indices = indices.contiguous()
        starts = torch.empty_like(indices)
        table = self.offsets.data_ptr(), self.sizes.data_ptr(), len(self.offsets)
        fields = self._lengths.data_ptr(), len(self._numbers), self._head_bytes
        wanted = indices.data_ptr(), len(indices)
        bad = self._check_heads(self._flat.data_ptr(), *table, *wanted, *fields, starts.data_ptr())
        if bad < 0:
            raise IndexError(f"records {indices.tolist()} of {len(self.offsets)}")
        if bad < len(indices):
            raise self._misfit(indices, torch.arange(len(indices)) == bad)
        return starts

    def _parts(self, starts: Tensor, stops: Tensor) -> Placed:
        """Return pieces of the file without copying them."""
        return Placed(self._address, starts.numpy(), (stops - starts).numpy(), self._view)

    def _column(self, name: str, indices: Tensor, starts: Tensor, stops: Tensor) -> Any:
        """Return the values of a field, given where they begin and end in the file."""
        field = self.manifest.fields[name]
        if field.encoding == "raw":
            return self._gathers[name](starts)
        if field.encoding != "ragged":
            return self._parts(starts, stops)
        dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
        sizes, row_bytes = stops - starts, _num_bytes(field)
        is_bad = sizes % row_bytes != 0
        if is_bad.any():
            raise self._misfit(indices, is_bad)
        data = gather_rows(self._flat, starts, sizes)
        return Ragged(typed(data, dtype, field.row_shape), sizes // row_bytes)

    def _misfit(self, indices: Tensor, is_bad: Tensor) -> DataError:
        where = f"{self.path}: record {int(indices[int(is_bad.int().argmax())])}"
        what = "its header does not fit its length or the manifest"
        return DataError(105, where, what, "pack it again")


def _views(file: np.ndarray, field: Field, starts: Tensor) -> Placed:
    """Return the values of a raw field that begin at some bytes, without copying them."""
    shape = _shape(field)

    def view(start: int, size: int) -> np.ndarray:
        return np.frombuffer(file[start : start + size], field.dtype).reshape(shape)

    lengths = np.full(len(starts), _num_bytes(field))
    return Placed(file.ctypes.data, starts.numpy(), lengths, view)


def _gather(flat: Tensor, field: Field) -> Gather:
    """Return a gather of a raw field, by the bytes where its values begin."""
    return Gather(flat, 1, _shape(field), torch.from_numpy(np.empty(0, field.dtype)).dtype)


def _too_large(where: str, num_bytes: int) -> DataError:
    what = f"{num_bytes} bytes, an LMDB value holds {MAX_VALUE_BYTES}"
    return DataError(116, where, what, "choose output=hdf5, or make records smaller")


def _fits_blocks(fields: Mapping[str, Field]) -> bool:
    """Return whether records with these fields are stored in blocks if their keys are numbers."""
    return all(field.encoding == "raw" for field in fields.values())


def _parts(fields: Mapping[str, Field], count: int) -> list[int]:
    """Return where each field, the checksums, and nothing more begin in a block of records."""
    starts = [0]
    for size in (*map(_num_bytes, fields.values()), CRC.itemsize):
        starts.append(starts[-1] + _padded(count * size))
    return starts


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def _head_bytes(num_fields: int) -> int:
    return _padded(4 * (2 + num_fields))  # whole words, so that the first field is aligned


def _num_bytes(field: Field) -> int:
    """Return the bytes of a record of a raw field, or of a row of a ragged one."""
    return math.prod(_shape(field)) * np.dtype(field.dtype).itemsize


def _shape(field: Field) -> tuple[int, ...]:
    """Return the shape of a record of a raw field, or of a row of a ragged one."""
    return (
        field.row_shape if field.encoding == "ragged" else tuple(size or 0 for size in field.shape)
    )


def _number_key(index: int) -> bytes:
    return index.to_bytes(8, "big")


def _crc(content: int, index: int, key: Any) -> int:
    """Extend the CRC32 of a record's fields by its number and its key."""
    return crc32(key, crc32(_number_key(index), content))
