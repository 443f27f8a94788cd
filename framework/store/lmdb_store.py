"""LMDB stores: blocks of records under the number of their first one, then the manifest.

A number is 8 bytes, big-endian. A block holds consecutive records: their CRC32 (uint32), the array
of each raw field in the manifest's order, and for each other field, and for the keys unless these
are numbers, where the bytes of each record begin in the block, and where the last ones end
(int64). Then come these bytes. Each part is padded to 8 bytes. A CRC32 covers the fields, the
number and the key, so that it also detects a record in a wrong place. Files have LMDB 0.9's
format.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

import lmdb
import numpy as np
import torch
from isal.isal_zlib import crc32
from torch import Tensor

from framework.contracts.records import Field, Manifest, Placed, Places, Ragged, Records
from framework.errors import DataError
from framework.store import file_store
from framework.store.foreign import lmdb_advice
from framework.store.gather import Gather, ask_pages, gather_rows, map_of, should_ask, typed
from framework.store.lmdb_btree import values_of
from framework.system.durable import abandon

MANIFEST_KEY = b"manifest"  # sorts after the key of every record
FIRST_MAP_BYTES = 64 << 20
# A transaction looks at pages of its map, around which the system maps others: some 60 kB each.
REMAP_BLOCKS = 64
MAX_VALUE_BYTES = (1 << 31) - 1  # LMDB's own limit is twice that; other readers stop here
BLOCK_BYTES = 1 << 20  # 100 million records of 16 bytes are 1,908 blocks
CRC_BYTES = 4
PLACE_BYTES = 8
CRCS, KEYS, HEADS = "\0crc32", "\0keys", "\0heads"  # parts of a block beside the fields


@final
class LMDBStore(file_store.FileStore):
    """A RecordStore over one LMDB file."""

    choice = "lmdb"

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        opened = self._open()
        rows = opened.rows(indices)
        if should_ask():
            opened.ask(rows)
        return {name: opened.column(name, rows, name in views) for name in self.manifest.fields}

    def column(self, name: str) -> Any:
        opened = self._open()
        return opened.column(name, opened.rows(torch.arange(self.manifest.num_records)))

    def lengths(self, name: str) -> Tensor:
        opened = self._open()
        starts, stops = opened.spans(name, opened.rows(torch.arange(self.manifest.num_records)))
        return (stops - starts) // _num_bytes(self.manifest.fields[name])

    def places(self, indices: Tensor) -> Places:
        opened = self._open()
        rows = opened.rows(indices)
        raw = [name for name, field in self.manifest.fields.items() if field.encoding == "raw"]
        starts = {name: opened.spans(name, rows)[0] for name in raw}
        return Places(torch.zeros_like(indices), starts)

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        opened = self._open()
        contents = file_store.content_crcs(records, self.manifest.fields)
        keys = None if self.manifest.first_key is not None else opened.keys(indices)
        return file_store.mismatches(
            indices, _numbered_and_keyed(contents, indices.numpy(), keys), opened.crcs(indices)
        )

    def _map(self) -> "OpenLMDB":
        """Map the file. DataError D102, D103 or D105 if it is no intact store."""
        file, keys, offsets, sizes = values_of(self.path)
        if keys[-1:] != [MANIFEST_KEY] or any(len(key) != len(MANIFEST_KEY) for key in keys):
            what = "is an LMDB file, but not a Paceline store"
            raise DataError(103, self.path, what, lmdb_advice(self.path))
        last = int(offsets[-1])
        manifest = file_store.from_json(self.path, bytes(file[last : last + int(sizes[-1])]))
        firsts = np.frombuffer(b"".join(keys[:-1]), ">i8").astype(np.int64)
        return OpenLMDB(self.path, manifest, file, firsts, offsets[:-1], sizes[:-1])


@final
class LMDBWriter(file_store.FileWriter):
    """A RecordWriter.

    The map grows by itself. Only ``close`` syncs: a temporary file may be lost.
    """

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        super().__init__(path, fields, num_records)
        raw = [name for name, field in fields.items() if field.encoding == "raw"]
        # What waits until it fills a block: pieces of arrays, and the bytes of each record.
        self._arrays: dict[str, list[bytes]] = {name: [] for name in (CRCS, *raw)}
        self._strings: dict[str, list[bytes]] = {name: [] for name in fields if name not in raw}
        self._first = 0  # the number of the first record that waits
        self._waiting_bytes = 0
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
        count, first = len(crcs), self._num_written
        crcs = _numbered_and_keyed(crcs, np.arange(first, first + count), keys)
        arrays = {CRCS: crcs} | {name: v for name, v in records.items() if name in self._arrays}
        strings = {
            name: list(map(bytes, file_store.buffers(records[name])))
            for name in self._strings
            if name != KEYS
        }
        if keys is not None:
            strings[KEYS] = keys
            self._strings.setdefault(KEYS, [])
        sizes = np.full(count, sum(column.nbytes for column in arrays.values()) // max(1, count))
        for column in strings.values():
            sizes += np.array([PLACE_BYTES + len(data) for data in column], np.int64)
        for number in np.flatnonzero(sizes > MAX_VALUE_BYTES)[:1].tolist():
            name = f"{self.path}: record {first + number}"
            what = f"{sizes[number]} bytes, an LMDB value holds {MAX_VALUE_BYTES}"
            raise DataError(116, name, what, "choose output=hdf5, or make records smaller")
        ends = np.cumsum(sizes)
        done, begin = 0, 0
        while done < count:
            room = begin + BLOCK_BYTES - self._waiting_bytes
            stop = int(np.searchsorted(ends, room, side="right"))
            if not self._waiting_bytes:
                stop = max(stop, done + 1)  # a record may be larger than a block
            for name, column in arrays.items():
                self._arrays[name].append(column[done:stop].tobytes())
            for name, column in strings.items():
                self._strings[name] += column[done:stop]
            if stop > done:
                self._waiting_bytes += int(ends[stop - 1]) - begin
                begin = int(ends[stop - 1])
            done = stop
            if done < count:
                self._put_block(first + done)

    def _put_block(self, stop: int) -> None:
        """Write the records that wait, up to the number ``stop``."""
        if stop == self._first:
            return
        parts = [_padded_bytes(b"".join(own)) for own in self._arrays.values()]
        num_places = len(self._strings) * (stop - self._first + 1)
        place = sum(map(len, parts)) + PLACE_BYTES * num_places
        for own in self._strings.values():
            places = place + np.cumsum([0, *map(len, own)])
            parts.append(places.astype("<i8").tobytes())
            place = int(places[-1])
        for own in self._strings.values():
            parts += own
        self._num_blocks += 1
        if self._num_blocks % REMAP_BLOCKS == 0:  # the same size: only to map the file anew
            self._environment.set_mapsize(self._environment.info()["map_size"])
        self._put(self._first.to_bytes(8, "big"), b"".join(parts))
        for own in (*self._arrays.values(), *self._strings.values()):
            own.clear()
        self._first, self._waiting_bytes = stop, 0

    def _finish(self, manifest: str) -> None:
        self._put_block(self._num_written)
        self._put(MANIFEST_KEY, manifest.encode())
        self._environment.sync(True)
        self._environment.close()

    def _drop(self) -> None:
        self._environment.close()

    def _put(self, key: bytes, value: bytes) -> None:
        """Write one transaction, and repeat it in a map of twice the size if the map is full."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    transaction.put(key, value, append=True)
                return
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except lmdb.Error as error:  # LMDB reports a full disk as EIO, without its errno
                raise OSError(28, f"LMDB cannot write ({error})") from error


@final
class OpenLMDB:
    """The blocks of a mapped file (uint8 [size]). DataError D105 if they do not fit the manifest.

    A block has the number ``firsts`` of its first record, and lies at ``offsets`` in the file with
    so many bytes (``sizes``): int64 [blocks] each.
    """

    def __init__(
        self,
        path: str,
        manifest: Manifest,
        file: np.ndarray,
        firsts: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
    ) -> None:
        self.path, self.file, self.manifest = path, file, manifest
        flat, count = torch.from_numpy(file), manifest.num_records
        raw = {name: field for name, field in manifest.fields.items() if field.encoding == "raw"}
        strings = [name for name in manifest.fields if name not in raw]
        if manifest.first_key is None:
            strings.append(KEYS)
        units = {CRCS: CRC_BYTES, **{name: _num_bytes(field) for name, field in raw.items()}}
        begins: dict[str, np.ndarray] = {}
        is_whole = firsts[:1].tolist() == [0] * min(1, count)
        if is_whole and max(count, *units.values()) <= len(file):  # a hostile manifest has any
            counts = np.diff(firsts, append=count)
            end = offsets
            for name, unit in units.items():
                begins[name] = end
                end = end + -(-counts * unit // 8) * 8
            for name in strings:
                begins[name] = end
                end = end + PLACE_BYTES * (counts + 1)
            begins[HEADS] = end - offsets
            # The records of each block, if all but the last one have equally many.
            is_even = np.all(counts[:-1] == counts[:1]) and np.all(counts[-1:] <= counts[:1])
            self._capacity = int(counts[0]) if count and is_even else 0
            left = offsets + sizes - end
            is_whole = bool(np.all(counts > 0) and np.all(left >= 0 if strings else left == 0))
        if not is_whole or not begins:
            what = f"its blocks do not hold the {count} records of its manifest"
            raise DataError(105, path, what, "pack it again")
        self._firsts, self._offsets = torch.from_numpy(firsts), torch.from_numpy(offsets)
        self._sizes = torch.from_numpy(sizes)
        self._begins = {name: torch.from_numpy(begin) for name, begin in begins.items()}
        self._heads = self._begins.pop(HEADS)  # the bytes of each block before those of strings
        self._strings = strings
        self._flat = flat
        self._gathers = {CRCS: Gather(flat, 1, (), torch.int32)}
        for name, field in raw.items():
            shape = tuple(size or 0 for size in field.shape)
            dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
            self._gathers[name] = Gather(flat, 1, shape, dtype)
        self._gather_places = Gather(flat, 1, (2,), torch.int64)
        buffer = memoryview(file)  # pyright: ignore[reportArgumentType]  # an array is a buffer
        self._view = lambda start, size: buffer[start : start + size]

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of each record's block, and its place in the block: int64 [B]."""
        file_store.check_range(indices, self.manifest.num_records)
        if self._capacity:
            blocks = indices // self._capacity
            return blocks, indices - blocks * self._capacity
        blocks = torch.searchsorted(self._firsts, indices.contiguous(), right=True) - 1
        return blocks, indices - self._firsts[blocks]

    def _places(self, name: str, rows: tuple[Tensor, Tensor], num_bytes: int) -> Tensor:
        """Return where the values of an array in the blocks begin in the file: int64 [B]."""
        blocks, places = rows
        return self._begins[name][blocks] + places * num_bytes

    def spans(self, name: str, rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return where each value of a field begins and ends in the file: int64 [B]."""
        if name in self._gathers:
            num_bytes = self._gathers[name].num_bytes
            starts = self._places(name, rows, num_bytes)
            return starts, starts + num_bytes
        blocks, _ = rows
        starts, stops = self._gather_places(self._places(name, rows, PLACE_BYTES)).unbind(1)
        is_bad = (starts < self._heads[blocks]) | (stops < starts) | (stops > self._sizes[blocks])
        if is_bad.any():
            raise self._misfit(rows, is_bad)
        offsets = self._offsets[blocks]
        return offsets + starts, offsets + stops

    def column(self, name: str, rows: tuple[Tensor, Tensor], is_viewed: bool = False) -> Any:
        """Return the values of a field of some records."""
        field = self.manifest.fields[name]
        if field.encoding == "raw" and not is_viewed:
            gather = self._gathers[name]
            return gather(self._places(name, rows, gather.num_bytes))
        starts, stops = self.spans(name, rows)
        if field.encoding == "raw":
            shape, file = self._gathers[name].shape, self.file

            def view(start: int, size: int) -> np.ndarray:
                return np.frombuffer(file[start : start + size], field.dtype).reshape(shape)

            sizes = (stops - starts).numpy()
            return Placed(file.ctypes.data, starts.numpy(), sizes, view)
        if field.encoding != "ragged":
            return self._parts(starts, stops)
        sizes, row_bytes = stops - starts, _num_bytes(field)
        is_bad = sizes % row_bytes != 0
        if is_bad.any():
            raise self._misfit(rows, is_bad)
        data = gather_rows(self._flat, starts, sizes)
        dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
        return Ragged(typed(data, dtype, field.row_shape), sizes // row_bytes)

    def ask(self, rows: tuple[Tensor, Tensor]) -> None:
        """Ask the disk for the records, and before that for the places of their bytes."""
        for name in self._strings:
            self._gather_places.ask(self._places(name, rows, PLACE_BYTES))
        for name in self.manifest.fields:
            starts, stops = self.spans(name, rows)
            ask_pages(map_of(self.file), starts, stops - starts)

    def keys(self, indices: Tensor) -> Sequence[Any]:
        return self._parts(*self.spans(KEYS, self.rows(indices)))

    def crcs(self, indices: Tensor) -> np.ndarray:
        """Return the stored checksums: uint32 [B]."""
        places = self._places(CRCS, self.rows(indices), CRC_BYTES)
        return self._gathers[CRCS](places).numpy().view("<u4")

    def _parts(self, starts: Tensor, stops: Tensor) -> Placed:
        """Return pieces of the file without copying them."""
        sizes = (stops - starts).numpy()
        return Placed(self.file.ctypes.data, starts.numpy(), sizes, self._view)

    def _misfit(self, rows: tuple[Tensor, Tensor], is_bad: Tensor) -> DataError:
        blocks, places = rows
        bad = int(is_bad.int().argmax())
        where = f"{self.path}: record {int(self._firsts[blocks[bad]] + places[bad])}"
        return DataError(105, where, "it does not lie in its block", "pack it again")


def _numbered_and_keyed(
    crcs: np.ndarray, numbers: np.ndarray, keys: Sequence[Any] | None
) -> np.ndarray:
    """Extend the CRC32s of records' fields by their numbers and their keys: uint32 [B]."""
    crcs = file_store.numbered_crcs(crcs, numbers)
    if keys is None:
        return crcs
    pairs = zip(keys, crcs.tolist(), strict=True)
    return np.array([crc32(key, crc) for key, crc in pairs], np.uint32)


def _padded_bytes(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // 8) * 8, b"\0")


def _num_bytes(field: Field) -> int:
    """Return the bytes of a record of a raw field, or of a row of a ragged one."""
    shape = field.row_shape if field.encoding == "ragged" else field.shape
    return math.prod(size or 0 for size in shape) * np.dtype(field.dtype).itemsize
