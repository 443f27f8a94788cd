"""LMDB stores: one value per record under an 8-byte big-endian number, written in append order; the manifest comes last.

A value is a header of uint32, little-endian: CRC32, length of the record's key, then a length per field in the manifest's order, padded
to 8 bytes; after it the fields' bytes, then the key. The CRC32 is over the fields, the record's number and its key, so that a value in the wrong place is
found. LMDB 0.9's format, which every other reader knows. The module's absolute name keeps it apart from the library it wraps.
"""

import os
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import lmdb
import numpy as np
import torch
from isal.isal_zlib import crc32
from torch import Tensor

from framework.contracts.records import Field, Manifest, Records
from framework.errors import DataError
from framework.store.checksum import buffers, content_crcs, digest
from framework.store.foreign import lmdb_advice
from framework.store.gather import Gather
from framework.store.identity import Identity, identify
from framework.store.lmdb_btree import read_meta, value_table
from framework.store.manifest import from_json, to_json
from framework.system.durable import abandon, publish

MANIFEST_KEY = b"manifest"  # sorts after every record's key
FIRST_MAP_BYTES = 64 << 20
MAX_VALUE_BYTES = (1 << 31) - 1  # LMDB's own limit is twice that; other readers stop here


def _key(index: int) -> bytes:
    return index.to_bytes(8, "big")


@final
class LMDBStore:
    """A RecordStore over one LMDB file, read through a memory map and the table of where its values lie. Made per process, at the first read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest: Manifest | None = None
        self._identity: Identity | None = None
        self._values: _Values | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_values": None}

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            self._open()
        assert self._manifest is not None
        return self._manifest

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        values = self._open()
        starts = values.starts(indices)
        records: Records = {}
        for (name, field), start, stop in zip(
            self.manifest.fields.items(), starts, starts[1:], strict=False
        ):
            if field.encoding == "raw" and name not in views:
                records[name] = values.gathers[name](start)
            else:
                parts = values.parts(start, stop)
                records[name] = (
                    parts if field.encoding != "raw" else [_array(part, field) for part in parts]
                )
        return records

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        values = self._open()
        stored = values.heads(indices)[:, 0].tolist()
        keys = values.keys(indices)
        content = content_crcs(records, self.manifest.fields)
        found = [
            _crc(crc, index, key)
            for crc, index, key in zip(content, indices.tolist(), keys, strict=True)
        ]
        return [
            index
            for index, now, then in zip(indices.tolist(), found, stored, strict=True)
            if now != then
        ]

    def key(self, index: int) -> str:
        return bytes(self._open().keys(torch.tensor([index]))[0]).decode(errors="surrogateescape")

    def name(self, index: int) -> str:
        try:
            key = self.key(index)
        except DataError:  # it is the one that is damaged
            key = ""
        return f"{self.path}: record {index}" + (f" ({key})" if key else "")

    def check(self) -> None:
        identify(self.path, self._identity)

    def close(self) -> None:
        self._values = None

    def _open(self) -> "_Values":
        if self._values is None or self._values.pid != os.getpid():
            self._identity = identify(self.path, self._identity)
            table = _Table(self.path)
            self._manifest = table.manifest
            self._values = _Values(self.path, table)
        return self._values


@final
class _Table:
    """The mapped file, where its records lie, and its manifest. DataError D102, D103, D105."""

    def __init__(self, path: str) -> None:
        meta = read_meta(path)
        # mode "c": pages are shared with the page cache, and torch gets a writable array without any way to change the file
        self.file = np.memmap(path, np.uint8, "c", shape=(meta.num_pages * meta.page_bytes,))
        try:
            keys, self.offsets, self.sizes = value_table(path, self.file, meta)
        except DataError as error:  # damaged, or with other keys than ours
            try:
                advice = lmdb_advice(path)
            except DataError:
                raise error from None
            raise _not_ours(path, advice) from error
        if not len(keys) or keys[-1] != int.from_bytes(MANIFEST_KEY, "big"):
            raise _not_ours(path, lmdb_advice(path))
        start, size = int(self.offsets[-1]), int(self.sizes[-1])
        self.manifest = from_json(path, bytes(self.file[start : start + size]))
        if self.manifest.num_records != len(keys) - 1 or np.any(
            keys[:-1] != np.arange(len(keys) - 1, dtype=np.uint64)
        ):
            raise DataError(
                105,
                path,
                f"{len(keys) - 1} records, its manifest says {self.manifest.num_records}",
                "pack it again",
            )


def _not_ours(path: str, advice: str) -> DataError:
    return DataError(103, path, "an LMDB file, but not a store of ours", advice)


@final
class _Values:
    """The values of records, by their place in the file."""

    def __init__(self, path: str, table: _Table) -> None:
        self.path, self.pid, self.fields = path, os.getpid(), list(table.manifest.fields.values())
        self.offsets, self.sizes = torch.from_numpy(table.offsets), torch.from_numpy(table.sizes)
        self.bytes = torch.from_numpy(table.file)
        self.buffer = memoryview(table.file)  # pyright: ignore[reportArgumentType]  # an array is a buffer
        self.head = _head_bytes(len(self.fields))
        self.gather_heads = Gather(self.bytes, 1, (self.head // 4,), torch.int32)
        self.gathers = {
            name: Gather(self.bytes, 1, _known(field), _torch_dtype(field))
            for name, field in table.manifest.fields.items()
            if field.encoding == "raw"
        }
        self.raw = [
            _raw_bytes(field) if field.encoding == "raw" else -1 for field in self.fields
        ]  # -1: any length
        self.fixed = torch.tensor([0, *self.raw]).cumsum(0).tolist() if -1 not in self.raw else None
        self.wanted, self.given = (
            torch.tensor(self.raw),
            torch.tensor([size >= 0 for size in self.raw]),
        )

    def heads(self, indices: Tensor) -> Tensor:
        """The headers of records: int64 [B, 2 + num_fields]: CRC32, length of the key, lengths of the fields."""
        short = self.sizes[indices] < self.head
        if short.any():
            raise self._misfit(indices, short)
        return (
            self.gather_heads(self.offsets[indices])[:, : 2 + len(self.fields)].long() & 0xFFFFFFFF
        )

    def starts(self, indices: Tensor) -> list[Tensor]:
        """Where each field begins in the file, and where the last one ends: num_fields + 1 of int64 [B]. The headers are checked."""
        if not len(indices):
            return [indices] * (len(self.fields) + 1)
        lengths = self.heads(indices)[:, 1:]
        offsets = self.offsets[indices]
        bad = lengths.sum(1) != self.sizes[indices] - self.head
        bad |= ((lengths[:, 1:] != self.wanted) & self.given).any(1)
        if bad.any():
            raise self._misfit(indices, bad)
        if self.fixed is not None:
            return [offsets + (self.head + start) for start in self.fixed]
        return list(
            torch.cat([offsets.unsqueeze(1) + self.head, lengths[:, 1:]], dim=1).cumsum(1).unbind(1)
        )

    def _misfit(self, indices: Tensor, bad: Tensor) -> DataError:
        where = f"{self.path}: record {int(indices[int(bad.int().argmax())])}"
        return DataError(
            105, where, "its header does not fit its length or the manifest", "pack it again"
        )

    def keys(self, indices: Tensor) -> list[memoryview]:
        return self.parts(self.starts(indices)[-1], (self.offsets + self.sizes)[indices])

    def parts(self, starts: Tensor, stops: Tensor) -> list[memoryview]:
        """Pieces of the file, not copied."""
        return [
            self.buffer[start:stop]
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]


def _head_bytes(num_fields: int) -> int:
    return -(-4 * (2 + num_fields) // 8) * 8  # whole words, so that the first field is aligned


def _crc(content: int, index: int, key: Any) -> int:
    """The CRC32 of a record's fields, whose own is ``content``, its number and its key."""
    return crc32(key, crc32(_key(index), content))


def _array(part: memoryview, field: Field) -> np.ndarray:
    return np.frombuffer(part, field.dtype).reshape(_known(field))


def _known(field: Field) -> tuple[int, ...]:
    return tuple(size for size in field.shape if size is not None)


def _raw_bytes(field: Field) -> int:
    return int(np.prod(_known(field), dtype=np.int64)) * np.dtype(field.dtype).itemsize


def _torch_dtype(field: Field) -> torch.dtype:
    return torch.from_numpy(np.empty(0, field.dtype)).dtype


@final
class LMDBWriter:
    """A RecordWriter. The map grows by itself; nothing is synced before ``close``, since a temporary file may be lost."""

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        self.path, self.fields, self._open = path, fields, True
        self._crcs: list[int] = []
        self._publish = publish(Path(path))
        temporary = self._publish.__enter__()
        try:
            self._environment = lmdb.open(
                str(temporary),
                subdir=False,
                lock=False,
                sync=False,
                map_size=FIRST_MAP_BYTES,
                lib_version=0,
                max_dbs=0,
            )
        except lmdb.Error as error:
            abandon(self._publish)
            raise OSError(28, f"LMDB cannot write ({error})") from error

    def write(self, records: Records, keys: Sequence[str]) -> None:
        columns = [buffers(_as_stored(records[name], field)) for name, field in self.fields.items()]
        contents = content_crcs(dict(zip(self.fields, columns, strict=True)), self.fields)
        items: list[tuple[bytes, bytes]] = []
        head = _head_bytes(len(self.fields))
        for content, name, *parts in zip(contents, keys, *columns, strict=True):
            index, key = len(self._crcs), name.encode(errors="surrogateescape")
            lengths = [len(key), *map(len, parts)]
            if sum(lengths) > MAX_VALUE_BYTES:
                what = f"{sum(lengths)} bytes, an LMDB value holds {MAX_VALUE_BYTES}"
                raise DataError(
                    116,
                    f"{self.path}: record {index} ({name})",
                    what,
                    "choose output=hdf5, or make records smaller",
                )
            header = struct.pack(
                f"<{1 + len(lengths)}I", _crc(content, index, key), *lengths
            ).ljust(head, b"\0")
            items.append((_key(index), b"".join((header, *parts, key))))
            self._crcs.append(content)
        self._put(items)

    def _put(self, items: list[tuple[bytes, bytes]]) -> None:
        """One transaction, begun again in a map of twice the size where it did not fit."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in items:
                        transaction.put(key, value, append=True)
                return
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except lmdb.Error as error:  # a full disk comes as EIO, without its errno
                raise OSError(28, f"LMDB cannot write ({error})") from error

    def close(self, manifest: Manifest) -> None:
        self._put([(MANIFEST_KEY, to_json(replace(manifest, digest=digest(self._crcs))).encode())])
        self._environment.sync(True)
        self._environment.close()
        self._open = False
        self._publish.__exit__(None, None, None)

    def abort(self) -> None:
        if not self._open:
            return
        self._open = False
        self._environment.close()
        abandon(self._publish)


def _as_stored(values: Any, field: Field) -> Any:
    return values if field.encoding != "raw" else np.ascontiguousarray(values, dtype=field.dtype)
