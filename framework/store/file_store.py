"""Stores that are one file: the manifest, the checksums, and base classes of stores and writers.

A checksum is CRC32 over the bytes of a record, a digest SHA-256 over the CRC32s of a store. ISA-L
computes 25 to 55 GB/s per core, but a call takes longer than the bytes of a short record. Those
are left to one call of ``native/crc32.c`` for all records.
"""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from isal.isal_zlib import crc32
from torch import Tensor

from framework.contracts.records import (
    CARRIED,
    KINDS,
    SCHEMA,
    ChannelStatistics,
    Field,
    Manifest,
    NumberKeys,
    Placed,
    Ragged,
    Records,
    Shard,
)
from framework.errors import DataError
from framework.store.files import Identity, identify
from framework.store.foreign import refuse_other
from framework.system.durable import abandon, publish
from framework.system.native import find

ENCODINGS = ("raw", "ragged", "image", "frames")
# From so many bytes of a record on, ISA-L is faster than the tables of native/crc32.c. Measured on
# an AMD EPYC, ns per record: 256 bytes 155 and 86, 512 bytes 159 and 186.
LONG_BYTES = 448


def to_json(manifest: Manifest) -> str:
    """Return the text, which holds its own CRC32: a flipped bit in a name must be noticed."""
    data = asdict(manifest)
    data["schema"] = SCHEMA
    # json writes ASCII: file names that are not UTF-8 survive as escapes.
    return json.dumps({**data, "crc32": crc32(json.dumps(data).encode())})


def from_json(path: str, text: str | bytes) -> Manifest:
    """Read the manifest of the store at ``path``.

    DataError D104 if the text is no manifest, is damaged, or has another schema.
    """
    try:
        data = json.loads(text)
        schema = int(data["schema"])
        if schema != SCHEMA:
            what = f"written with schema {schema}, this version reads {SCHEMA}"
            fix = "update paceline" if schema > SCHEMA else "pack it again"
            raise DataError(104, path, what, fix)
        if data.pop("crc32") != crc32(json.dumps(data).encode()):
            raise ValueError("its checksum differs")
        fields: dict[str, Field] = {}
        for name, block in data.pop("fields").items():
            fields[name] = field = Field(**block | {"shape": tuple(block["shape"])})
            torch.from_numpy(np.empty(0, field.dtype))  # TypeError for a dtype that torch lacks
            is_known = field.encoding in ENCODINGS and field.kind in KINDS
            if not is_known or not fits_kind(field):
                raise ValueError(f"field {name!r} is {field.kind} {field.dtype} {field.shape}")
        shards = [Shard(**shard) for shard in data.pop("shards")]
        statistics = {
            name: ChannelStatistics(tuple(block["mean"]), tuple(block["std"]))
            for name, block in data.pop("statistics").items()
        }
        manifest = Manifest(fields=fields, shards=shards, statistics=statistics, **data)
        if type(manifest.num_records) is not int or manifest.num_records < 0:
            raise ValueError(f"{manifest.num_records} records")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(104, path, f"its manifest is damaged ({error})", "pack it again") from error
    return manifest


def fits_kind(field: Field) -> bool:
    """Return whether a field can be of its kind."""
    if field.encoding == "frames" or field.kind == "video":
        form = (field.encoding, field.kind, field.dtype)
        if form != ("frames", "video", "uint8") or len(field.shape) != 4:
            return False
        count, height, width, channels = field.shape
        is_known = (height is None) == (width is None) and 0 not in (height, width)
        return count is None and channels in (1, 3) and is_known
    if field.kind == "labels":
        return field.dtype == "uint8" and field.channels == 1
    if field.kind in (*CARRIED, "audio"):
        return (field.dtype, field.shape) == ("uint8", (None,))
    if field.kind == "boxes":
        return (field.dtype, field.shape) == ("float32", (None, 4))
    return field.kind != "points" or (field.dtype == "float32" and field.shape[-1:] in ((2,), (3,)))


def content_crcs(records: Records, fields: Mapping[str, Field]) -> np.ndarray:
    """Return the CRC32 of each record: over all fields, in the order of ``fields``. uint32 [B]."""
    columns = [records[name] for name in fields]
    extend = find("paceline_crc32")
    are_arrays = all(isinstance(column, Tensor | np.ndarray) for column in columns)
    num_bytes = sum(column.nbytes for column in columns) if are_arrays else 0
    if extend is not None and are_arrays and num_bytes < LONG_BYTES * max(1, len(columns[0])):
        extended = np.zeros(len(columns[0]), np.uint32)
        for column in columns:
            rows = np.ascontiguousarray(column)
            size = rows.nbytes // max(1, len(rows))
            extend(rows.ctypes.data, size, len(rows), extended.ctypes.data)
        return extended
    crcs: list[int] = []
    for parts in zip(*map(buffers, columns), strict=True):
        crc = 0
        for part in parts:
            crc = crc32(part, crc)
        crcs.append(crc)
    return np.array(crcs, np.uint32)


def numbered_crcs(crcs: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the CRC32s extended by the number of each record: 8 bytes, big-endian."""
    numbers = indices.astype(">u8")
    extend = find("paceline_crc32")
    if extend is None:
        pairs = zip(buffers(numbers), crcs.tolist(), strict=True)
        return np.array([crc32(number, crc) for number, crc in pairs], np.uint32)
    extended = crcs.copy()
    extend(numbers.ctypes.data, numbers.itemsize, len(numbers), extended.ctypes.data)
    return extended


def mismatches(indices: Tensor, crcs: np.ndarray, stored: np.ndarray) -> list[int]:
    """Return those ``indices`` whose CRC32 differs from the stored one (both uint32 [B])."""
    return indices[torch.from_numpy(crcs != stored)].tolist()


def buffers(values: Any) -> Sequence[Any]:
    """Return one buffer per record: image bytes as they are, or the rows of an array or tensor."""
    if isinstance(values, Ragged):
        values = values.arrays()
    if isinstance(values, Tensor):
        values = values.numpy()
    if isinstance(values, list | Placed) and len(values) and isinstance(values[0], np.ndarray):
        return [array.reshape(-1).view(np.uint8).data for array in values]
    if not isinstance(values, np.ndarray):
        return values
    count = len(values)
    flat = memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]
    size = len(flat) // max(1, count)
    return [flat[number * size : (number + 1) * size] for number in range(count)]


def digest(*parts: np.ndarray) -> str:
    """Return the SHA-256 of the CRC32s of all parts in order, in hexadecimal."""
    total = hashlib.sha256()
    for crcs in parts:
        total.update(crcs.astype("<u4").tobytes())
    return total.hexdigest()


def check_range(indices: Tensor, count: int) -> None:
    """Raise IndexError if an index is not one of ``count`` records."""
    numbers = indices.numpy()  # whose operators keep Python's lock, which takes less than giving it
    if not len(numbers):
        return
    first, last = np.minimum.reduce(numbers), np.maximum.reduce(numbers)
    if not 0 <= first <= last < count:
        raise IndexError(f"records {first}..{last} of {count}")


class FileStore(ABC):
    """A RecordStore in one file. Each process maps the file when it first needs it."""

    choice: ClassVar[str]  # of data=, for errors

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest: Manifest | None = None
        self._identity: Identity | None = None
        # With the number of the process: a forked child must not use the maps of its parent.
        self._mapped: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def manifest(self) -> Manifest:
        manifest: Manifest = self._manifest or self._open().manifest
        self._manifest = manifest
        return manifest

    @abstractmethod
    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records: ...

    @property
    def paths(self) -> list[str]:
        return [self.path]

    @abstractmethod
    def damaged(self, indices: Tensor, records: Records) -> list[int]: ...

    def key(self, index: int) -> str:
        return self.keys(torch.tensor([index]))[0]

    def keys(self, indices: Tensor) -> list[str]:
        first = self.manifest.first_key
        if first is not None:
            return [str(first + index) for index in indices.tolist()]
        keys = self._open().keys(indices)
        return [bytes(key).decode(errors="surrogateescape") for key in keys]

    def name(self, index: int) -> str:
        key = ""
        with suppress(DataError):  # the name may be for an error about this very record
            key = self.key(index)
        return f"{self.path}: record {index} ({key})".removesuffix(" ()")

    def check(self) -> None:
        identify(self.path, self._identity)

    def close(self) -> None:
        self._mapped = None

    def _open(self) -> Any:
        """Return what ``_map`` made in this process."""
        mapped = self._mapped
        if mapped is not None and mapped[0] == os.getpid():
            return mapped[1]
        identity = identify(self.path, self._identity)
        refuse_other(self.path, self.choice)
        file = self._map()
        self._identity = identify(self.path, identity)  # the file may be replaced meanwhile
        # Other threads see the mapped file only now, when it is complete.
        self._mapped = os.getpid(), file
        return file

    @abstractmethod
    def _map(self) -> Any:
        """Map the file. The result has its ``manifest``, and the ``keys`` of some records."""


class FileWriter(ABC):
    """A RecordWriter of the file ``path``, of exactly ``num_records`` records.

    ``close`` puts the file in its place.
    """

    def __init__(self, path: str, fields: Mapping[str, Field], num_records: int) -> None:
        self.path = Path(path)
        self.fields = fields
        self._num_records = num_records
        self._num_written = 0
        self._first_key: int | None = None
        self._can_number = True  # whether the file may leave out keys that are numbers
        self._digest = hashlib.sha256()
        self._is_open = True
        self._publish = publish(self.path)
        self._temporary = self._publish.__enter__()

    def write(self, records: Records, keys: Sequence[str]) -> None:
        stored: Records = {}
        for name, field in self.fields.items():
            values = records[name]
            if field.encoding == "ragged":
                values = [np.ascontiguousarray(array, dtype=field.dtype) for array in values]
            elif field.encoding == "raw":
                values = np.ascontiguousarray(values, dtype=field.dtype)
            stored[name] = values
        crcs = content_crcs(stored, self.fields)
        start = self._num_written
        if isinstance(keys, NumberKeys) and self._can_number and not start:
            self._first_key = keys.start
        names: list[bytes] | None = None
        if self._first_key is None:
            names = [key.encode(errors="surrogateescape") for key in keys]
        else:
            assert isinstance(keys, NumberKeys)  # as the contract says
            assert keys.start == self._first_key + start
        self._append(stored, names, crcs)
        self._digest.update(crcs.astype("<u4").tobytes())
        self._num_written += len(crcs)

    def close(self, manifest: Manifest) -> None:
        if self._num_written != self._num_records:
            what = f"{self._num_written} of {self._num_records} records were written"
            raise DataError(105, str(self.path), what, "report this bug")
        digest = self._digest.hexdigest()
        self._finish(to_json(replace(manifest, digest=digest, first_key=self._first_key)))
        self._is_open = False
        self._publish.__exit__(None, None, None)

    def abort(self) -> None:
        if self._is_open:
            self._is_open = False
            self._drop()
            abandon(self._publish)

    @abstractmethod
    def _append(self, records: Records, keys: list[bytes] | None, crcs: np.ndarray) -> None:
        """Write the next records and their keys, if keys are stored.

        ``crcs`` are the checksums of these records: uint32 [B].
        """

    @abstractmethod
    def _finish(self, manifest: str) -> None:
        """Write the manifest and all other data of the whole store. Close the temporary file."""

    @abstractmethod
    def _drop(self) -> None:
        """Close the temporary file without completing it."""
