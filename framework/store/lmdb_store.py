"""LMDB stores: one value per record under its number (8 bytes, big-endian), then the manifest.

A value consists of a header, the bytes of the fields, and the record's key. The header is uint32,
little-endian, padded to 8 bytes: a CRC32, the length of the key, and the length of each field in
the manifest's order. The CRC32 covers the fields, the number and the key, so that it also detects
a value in a wrong place. Files have LMDB 0.9's format, which every other reader knows.

Records that are arrays of one size, with numbers as keys, are stored in blocks instead: see
``lmdb_blocks``.
"""

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

import lmdb
import numpy as np
import torch
from isal.isal_zlib import crc32
from torch import Tensor

from framework.contracts.records import Field, Manifest, Placed, Places, Ragged, Records
from framework.errors import DataError
from framework.store.checksum import buffers, content_crcs, mismatches
from framework.store.cold_pages import ask_pages, map_of, should_ask
from framework.store.file_store import FileStore, FileWriter, check_range
from framework.store.foreign import lmdb_advice
from framework.store.gather import Gather
from framework.store.gather_rows import gather_rows, typed
from framework.store.lmdb_blocks import BlockBuffer, Blocks, BlockValue, fits_blocks
from framework.store.lmdb_btree import Meta, NumberedValues, read_meta, value_table
from framework.store.manifest import from_json
from framework.system.durable import abandon
from framework.system.native import find

MANIFEST_KEY = b"manifest"  # sorts after the key of every record
FIRST_MAP_BYTES = 64 << 20
# A transaction looks at pages of its map, around which the system maps others: some 60 kB each.
REMAP_BLOCKS = 64
MAX_VALUE_BYTES = (1 << 31) - 1  # LMDB's own limit is twice that; other readers stop here


@final
class LMDBStore(FileStore["_OpenFile"]):
    """A RecordStore over one LMDB file."""

    choice = "lmdb"

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        opened = self._open()
        if should_ask():
            opened.ask(indices)
        if opened.blocks is not None:
            return _read_blocks(opened.blocks, indices, views)
        values = opened.values
        starts = values.starts(indices)
        records: Records = {}
        for place, (name, field) in enumerate(self.manifest.fields.items()):
            if field.encoding != "raw" or name not in views:
                records[name] = values.column(name, indices, starts[place : place + 2])
                continue
            records[name] = values.views(field, starts[place], starts[place + 1])
        return records

    def column(self, name: str) -> Any:
        indices = torch.arange(self.manifest.num_records)
        opened = self._open()
        if opened.blocks is not None:
            return opened.blocks.column(name, opened.blocks.rows(indices))
        return opened.values.column(name, indices, self._bounds(name, indices))

    def lengths(self, name: str) -> Tensor:
        start, stop = self._bounds(name, torch.arange(self.manifest.num_records))
        return (stop - start) // _row_bytes(self.manifest.fields[name])

    def places(self, indices: Tensor) -> Places:
        opened = self._open()
        check_range(indices, self.manifest.num_records)
        fields = self.manifest.fields.items()
        raw = [name for name, field in fields if field.encoding == "raw"]
        if opened.blocks is not None:
            rows = opened.blocks.rows(indices)
            starts = {name: opened.blocks.starts(name, rows) for name in raw}
        else:
            begins = dict(zip(self.manifest.fields, opened.values.starts(indices), strict=False))
            starts = {name: begins[name] for name in raw}
        return Places(torch.zeros_like(indices), starts)

    def _bounds(self, name: str, indices: Tensor) -> list[Tensor]:
        """Return where a field of each record begins and ends in the file."""
        place = list(self.manifest.fields).index(name)
        return self._open().values.starts(indices)[place : place + 2]

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        opened = self._open()
        if opened.blocks is not None:
            return opened.blocks.damaged(indices, records)
        values = opened.values
        contents = content_crcs(records, self.manifest.fields).tolist()
        items = zip(contents, indices.tolist(), values.keys(indices), strict=True)
        crcs = np.array([_crc(content, index, key) for content, index, key in items], np.uint32)
        return mismatches(indices, crcs, values.crcs(indices))

    def _map(self) -> "_OpenFile":
        return _OpenFile(self.path)


@final
class LMDBWriter(FileWriter):
    """A RecordWriter.

    The map grows by itself. Only ``close`` syncs: a temporary file may be lost.
    """

    _buffer: BlockBuffer | None = None
    _num_blocks = 0

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        super().__init__(path, fields, num_records)
        self._can_number = fits_blocks(fields)
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

    def _put_blocks(self, blocks: Sequence[BlockValue]) -> None:
        for start, value in blocks:
            self._num_blocks += 1
            if self._num_blocks % REMAP_BLOCKS == 0:  # the same size: only to map the file anew
                self._environment.set_mapsize(self._environment.info()["map_size"])
            if len(value) > MAX_VALUE_BYTES:
                where = f"{self.path}: record {start}"
                raise _too_large(where, len(value))
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


@final
class _OpenFile:
    """A mapped file: the blocks of its records, or a value for each.

    DataError D102, D103 or D105 if it is no intact store.
    """

    def __init__(self, path: str) -> None:
        meta = read_meta(path)
        # Mode "c" shares the page cache. Torch gets a writable array that cannot change the file.
        self.file = np.memmap(path, np.uint8, "c", shape=(meta.num_pages * meta.page_bytes,))
        keys, offsets, sizes = _own_values(path, self.file, meta)
        last = int(offsets[-1])
        self.manifest = from_json(path, bytes(self.file[last : last + int(sizes[-1])]))
        table = NumberedValues(keys[:-1], offsets[:-1], sizes[:-1])
        self.blocks: Blocks | None = None
        if self.manifest.first_key is not None and fits_blocks(self.manifest.fields):
            self.blocks = Blocks(path, self.file, self.manifest, table)
        else:
            self.values = _Values(path, self.file, self.manifest, table)

    def keys(self, indices: Tensor) -> list[memoryview]:
        return self.values.keys(indices)

    def ask(self, indices: Tensor) -> None:
        """Ask the disk for the records."""
        if self.blocks is not None:
            self.blocks.ask(self.blocks.rows(indices))
        else:
            values = self.values
            ask_pages(map_of(self.file), values.offsets[indices], values.sizes[indices])


def _own_values(path: str, file: np.ndarray, meta: Meta) -> NumberedValues:
    """Return where the values of a store are. DataError D103 for another program's file."""
    try:
        values = value_table(path, file, meta)
    except DataError as error:  # damaged, or with other keys than ours
        try:
            advice = lmdb_advice(path)
        except DataError:
            raise error from None
        raise _foreign(path, advice) from error
    if not len(values.keys) or values.keys[-1] != int.from_bytes(MANIFEST_KEY, "big"):
        raise _foreign(path, lmdb_advice(path))
    return values


def _read_blocks(blocks: Blocks, indices: Tensor, views: Collection[str]) -> Records:
    rows = blocks.rows(indices)
    return {
        name: blocks.views(name, rows) if name in views else blocks.column(name, rows)
        for name in blocks.manifest.fields
    }


@final
class _Values:
    """A value for each record of a mapped file. DataError D105 if they are not all there.

    Args:
        path: Of the file, for errors.
        file: The map: uint8 [size].
        manifest: Of the store.
        table: The values, by the number of their record.
    """

    def __init__(
        self,
        path: str,
        file: np.ndarray,
        manifest: Manifest,
        table: NumberedValues,
    ) -> None:
        keys, offsets, sizes = table
        self.path, self.file, self.manifest = path, file, manifest
        num_records = len(keys)
        is_numbered = np.array_equal(keys, np.arange(num_records, dtype=np.uint64))
        if self.manifest.num_records != num_records or not is_numbered:
            what = f"{num_records} records, its manifest says {self.manifest.num_records}"
            raise DataError(105, path, what, "pack it again")
        self.offsets = torch.from_numpy(offsets)
        self.sizes = torch.from_numpy(sizes)
        self._prepare_reading(self.manifest.fields)

    def _prepare_reading(self, fields: Mapping[str, Field]) -> None:
        self.flat = torch.from_numpy(self.file)
        self._address = self.file.ctypes.data
        self.buffer = memoryview(self.file)  # pyright: ignore[reportArgumentType]  # an array is a buffer
        self.num_fields = len(fields)
        self.head_bytes = _head_bytes(len(fields))
        self.gather_heads = Gather(self.flat, 1, (self.head_bytes // 4,), torch.int32)
        self.gathers: dict[str, Gather] = {}
        lengths = [self._add_gather(name, field) for name, field in fields.items()]
        self.lengths = torch.tensor(lengths, dtype=torch.int64)
        # If all lengths are known, every record has its fields at the same places.
        self.fixed: list[int] | None = None
        self._check_heads: Any = None
        if -1 not in lengths:
            self.fixed = np.cumsum([0, *lengths]).tolist()
            self._check_heads = find("paceline_lmdb_heads")

    def _add_gather(self, name: str, field: Field) -> int:
        """Prepare the reading of a field. Return its bytes in each record; -1: any number."""
        if field.encoding != "raw":
            return -1
        dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
        self.gathers[name] = Gather(self.flat, 1, _shape(field), dtype)
        # A hostile manifest may declare more bytes than int64 holds. No record has so many.
        return min(self.gathers[name].num_bytes, len(self.file))

    def heads(self, indices: Tensor) -> Tensor:
        """Return headers as int64 [B, 2 + num_fields]: CRC32, length of the key, of the fields."""
        is_short = self.sizes[indices] < self.head_bytes
        if is_short.any():
            raise self._misfit(indices, is_short)
        words = self.gather_heads(self.offsets[indices])
        return words[:, : 2 + self.num_fields].long() & 0xFFFFFFFF

    def starts(self, indices: Tensor) -> list[Tensor]:
        """Return where fields begin in the file, and where the last one ends.

        These are num_fields + 1 tensors of int64 [B]. The headers are checked.
        """
        if not len(indices):
            return [indices] * (self.num_fields + 1)
        if self.fixed is not None and self._check_heads is not None:
            begins = self._fixed_starts(indices)
            return [begins + start for start in self.fixed]
        lengths = self.heads(indices)[:, 1:]
        offsets = self.offsets[indices] + self.head_bytes
        is_bad = lengths.sum(1) != self.sizes[indices] - self.head_bytes
        is_bad |= ((lengths[:, 1:] != self.lengths) & (self.lengths >= 0)).any(1)
        if is_bad.any():
            raise self._misfit(indices, is_bad)
        if self.fixed is not None:
            return [offsets + start for start in self.fixed]
        return list(torch.cat([offsets.unsqueeze(1), lengths[:, 1:]], dim=1).cumsum(1).unbind(1))

    def _fixed_starts(self, indices: Tensor) -> Tensor:
        """Return where fields of known lengths begin: int64 [B]. The headers are checked."""
        indices = indices.contiguous()
        starts = torch.empty_like(indices)
        table = self.offsets.data_ptr(), self.sizes.data_ptr(), len(self.offsets)
        fields = self.lengths.data_ptr(), self.num_fields, self.head_bytes
        wanted = indices.data_ptr(), len(indices)
        bad = self._check_heads(self.flat.data_ptr(), *table, *wanted, *fields, starts.data_ptr())
        if bad < 0:
            raise IndexError(f"records {indices.tolist()} of {len(self.offsets)}")
        if bad < len(indices):
            raise self._misfit(indices, torch.arange(len(indices)) == bad)
        return starts

    def crcs(self, indices: Tensor) -> np.ndarray:
        """Return the stored CRC32s: uint32 [B]."""
        return self.heads(indices)[:, 0].numpy().astype(np.uint32)

    def keys(self, indices: Tensor) -> list[memoryview]:
        return list(self.parts(self.starts(indices)[-1], (self.offsets + self.sizes)[indices]))

    def parts(self, starts: Tensor, stops: Tensor) -> Placed:
        """Return pieces of the file without copying them."""
        return Placed(self._address, starts.numpy(), (stops - starts).numpy(), self._view)

    def _view(self, start: int, size: int) -> memoryview:
        return self.buffer[start : start + size]

    def views(self, field: Field, starts: Tensor, stops: Tensor) -> Placed:
        """Return the values of a raw field without copying them."""
        shape = _shape(field)

        def view(start: int, size: int) -> np.ndarray:
            return np.frombuffer(self._view(start, size), field.dtype).reshape(shape)

        return Placed(self._address, starts.numpy(), (stops - starts).numpy(), view)

    def column(self, name: str, indices: Tensor, bounds: list[Tensor]) -> Any:
        """Return the values of a field, given where they begin and end in the file."""
        field = self.manifest.fields[name]
        starts, stops = bounds
        if field.encoding == "raw":
            return self.gathers[name](starts)
        if field.encoding == "ragged":
            return self._rows(field, indices, starts, stops - starts)
        return self.parts(starts, stops)

    def _rows(self, field: Field, indices: Tensor, starts: Tensor, sizes: Tensor) -> Ragged:
        """Return the ragged arrays that begin at ``starts`` and have so many bytes."""
        dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
        is_bad = sizes % _row_bytes(field) != 0
        if is_bad.any():
            raise self._misfit(indices, is_bad)
        data = gather_rows(self.flat, starts, sizes)
        return Ragged(typed(data, dtype, field.row_shape), sizes // _row_bytes(field))

    def _misfit(self, indices: Tensor, is_bad: Tensor) -> DataError:
        where = f"{self.path}: record {int(indices[int(is_bad.int().argmax())])}"
        what = "its header does not fit its length or the manifest"
        return DataError(105, where, what, "pack it again")


def _too_large(where: str, num_bytes: int) -> DataError:
    what = f"{num_bytes} bytes, an LMDB value holds {MAX_VALUE_BYTES}"
    return DataError(116, where, what, "choose output=hdf5, or make records smaller")


def _foreign(path: str, advice: str) -> DataError:
    return DataError(103, path, "is an LMDB file, but not a Paceline store", advice)


def _head_bytes(num_fields: int) -> int:
    return -(-4 * (2 + num_fields) // 8) * 8  # whole words, so that the first field is aligned


def _row_bytes(field: Field) -> int:
    """Return the bytes of a row of a ragged field."""
    return math.prod(field.row_shape) * np.dtype(field.dtype).itemsize


def _number_key(index: int) -> bytes:
    return index.to_bytes(8, "big")


def _crc(content: int, index: int, key: Any) -> int:
    """Extend the CRC32 of a record's fields by its number and its key."""
    return crc32(key, crc32(_number_key(index), content))


def _shape(field: Field) -> tuple[int, ...]:
    return tuple(size for size in field.shape if size is not None)
