"""LMDB stores: one value per record under an 8-byte big-endian number, written in append order; the manifest comes last.

A value is a header of one uint32 length per field, in the manifest's order, then the fields' bytes. LMDB 0.9's format, which
every other reader knows. The module's absolute name keeps it apart from the library it wraps.
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import lmdb
import numpy as np
import torch
from torch import Tensor

from framework.contracts import Field, Manifest, Records, SourceContext
from framework.data.manifest import from_json, to_json
from framework.data.source import StoreSource
from framework.durable import abandon, publish
from framework.errors import DataError

MANIFEST_KEY = b"manifest"  # sorts after every record's key
META_MAGIC = 0xBEEFC0DE
FIRST_MAP_BYTES = 64 << 20


def lmdb_source(path: str, *, context: SourceContext) -> StoreSource:
    """The records of the LMDB store at ``path``."""
    return StoreSource(LMDBStore(path), context)


def _key(index: int) -> bytes:
    return index.to_bytes(8, "big")


Key = tuple[int, str, int]  # process, file, inode: a file packed anew is another one

# LMDB refuses to open one file twice in a process, so all stores of a process share its environments, counting their users
_environments: dict[Key, tuple[Any, int]] = {}


def _acquire(path: str) -> tuple[Key, Any]:
    check_size(path)
    key = (os.getpid(), os.path.realpath(path), os.stat(path).st_ino)
    for old in [old for old in _environments if old[0] != key[0]]:
        _environments.pop(old)[0].close()  # inherited over a fork: this process's copy; LMDB would refuse to open its file
    environment, users = _environments.get(key, (None, 0))
    if environment is None:
        try:
            environment = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False, lib_version=0)
        except lmdb.Error as error:
            raise DataError(102, path, f"LMDB cannot open it ({error})", "pack it again") from error
    _environments[key] = (environment, users + 1)
    return key, environment


def _release(key: Key) -> None:
    environment, users = _environments.pop(key, (None, 0))
    if users > 1:
        _environments[key] = (environment, users - 1)
    elif environment is not None:
        environment.close()


def check_size(path: str) -> None:
    """Compare the size the newest meta page promises with the file's, before it is mapped: reading past the end is a SIGBUS.

    Source: lmdb's ``mdb.c``, MDB_meta: magic, version, address, map size, two 48-byte trees (the first word is the page
    size), last page number, transaction number.
    """
    if not os.path.isfile(path):
        raise DataError(101, path, "no such file", "give the path of a packed store, or make one with 'paceline pack'")
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(1 << 17)
    if len(head) < 152 or struct.unpack_from("<I", head, 16)[0] != META_MAGIC:
        raise DataError(102, path, "not an LMDB file", "give a file made by 'paceline pack output=lmdb'")
    page_bytes = struct.unpack_from("<I", head, 40)[0]
    if len(head) < page_bytes + 152:
        raise DataError(102, path, f"truncated: it has {size} bytes, not even two pages", "pack it again")
    last_page = max(struct.unpack_from("<Q", head, start + 136)[0] for start in (0, page_bytes))
    if (last_page + 1) * page_bytes > size:
        raise DataError(102, path, f"truncated: expected {(last_page + 1) * page_bytes} bytes, have {size}", "pack it again")


@final
class LMDBStore:
    """A RecordStore over one LMDB file; one read transaction per batch."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest: Manifest | None = None
        self._environment: Any = None
        self._key: Key | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_manifest": self._manifest, "_environment": None, "_key": None}

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            with self._begin() as transaction:
                text = transaction.get(MANIFEST_KEY)
            if text is None:
                raise DataError(103, self.path, "an LMDB file, but not a store of ours", "make one with 'paceline pack'")
            self._manifest = from_json(self.path, bytes(text))
        return self._manifest

    def read(self, indices: Tensor) -> Records:
        fields = self.manifest.fields
        with self._begin() as transaction:
            values = [transaction.get(_key(index)) for index in indices.tolist()]
            if None in values:
                raise DataError(105, self.name(int(indices[values.index(None)])), "not in the store", "pack it again")
            if all(field.encoding == "raw" for field in fields.values()):
                return self._rows(values, indices)
            return self._parts(values, indices)

    def _rows(self, values: list[Any], indices: Tensor) -> Records:
        """All fields fixed: one copy of all values as a matrix of bytes, cut by columns."""
        sizes = [_raw_bytes(field) for field in self.manifest.fields.values()]
        header = struct.pack(f"<{len(sizes)}I", *sizes)
        row_bytes = len(header) + sum(sizes)
        if any(len(value) != row_bytes or value[: len(header)] != header for value in values):
            bad = next(
                i for i, v in zip(indices.tolist(), values, strict=True) if len(v) != row_bytes or v[: len(header)] != header
            )
            raise DataError(105, self.name(bad), "its header does not fit the manifest", "pack it again")
        rows = _from_bytes(values, torch.uint8).view(len(values), row_bytes)
        records: Records = {}
        column = len(header)
        for (name, field), size in zip(self.manifest.fields.items(), sizes, strict=True):
            part = rows[:, column : column + size].contiguous()
            records[name] = part.view(_torch_dtype(field)).view(len(values), *_known(field))
            column += size
        return records

    def _parts(self, values: list[Any], indices: Tensor) -> Records:
        fields = self.manifest.fields
        parts: dict[str, list[bytes]] = {name: [] for name in fields}
        for index, value in zip(indices.tolist(), values, strict=True):
            for name, part in zip(fields, self._split(index, value, len(fields)), strict=True):
                parts[name].append(part)
        return {name: parts[name] if f.encoding != "raw" else self._stack(f, parts[name], indices) for name, f in fields.items()}

    def _split(self, index: int, value: Any, num_fields: int) -> list[bytes]:
        start = 4 * num_fields
        sizes = struct.unpack_from(f"<{num_fields}I", value) if len(value) >= start else ()
        if start + sum(sizes) != len(value):
            raise DataError(105, self.name(index), "its header does not fit its length", "pack it again")
        parts: list[bytes] = []
        for size in sizes:
            parts.append(bytes(value[start : start + size]))
            start += size
        return parts

    def _stack(self, field: Field, parts: list[bytes], indices: Tensor) -> Tensor:
        for index, part in zip(indices.tolist(), parts, strict=True):
            if len(part) != _raw_bytes(field):
                raise DataError(105, self.name(index), "its header does not fit the manifest", "pack it again")
        return _from_bytes(parts, _torch_dtype(field)).view(len(parts), *_known(field))

    def name(self, index: int) -> str:
        return f"{self.path}: record {index}"

    def close(self) -> None:
        if self._key is not None:
            _release(self._key)
        self._environment = self._key = None

    def _begin(self) -> Any:
        if self._key is None or self._key[0] != os.getpid():
            self._key, self._environment = _acquire(self.path)
        return self._environment.begin(buffers=True)


def _from_bytes(values: list[Any], dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray().join(values), dtype=dtype) if values else torch.empty(0, dtype=dtype)


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
        self.fields, self._row, self._open = fields, 0, True
        self._publish = publish(Path(path))
        temporary = self._publish.__enter__()
        try:
            self._environment = lmdb.open(
                str(temporary), subdir=False, lock=False, sync=False, map_size=FIRST_MAP_BYTES, lib_version=0, max_dbs=0
            )
        except lmdb.Error as error:
            abandon(self._publish)
            raise OSError(28, f"LMDB cannot write ({error})") from error

    def write(self, records: Records) -> None:
        columns = [_as_bytes(records[name], field) for name, field in self.fields.items()]
        items: list[tuple[bytes, bytes]] = []
        for parts in zip(*columns, strict=True):
            header = struct.pack(f"<{len(parts)}I", *map(len, parts))
            items.append((_key(self._row), b"".join((header, *parts))))
            self._row += 1
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
        self._put([(MANIFEST_KEY, to_json(manifest).encode())])
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


def _as_bytes(values: Any, field: Field) -> list[bytes]:
    if field.encoding != "raw":
        return [bytes(value) for value in values]
    return [row.tobytes() for row in np.ascontiguousarray(values, dtype=field.dtype)]
