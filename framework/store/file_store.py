"""Stores that are one file: the manifest, the checksums, and base classes of stores and writers.

A checksum is CRC32 over the bytes of a record, a digest SHA-256 over the CRC32s of a store. ISA-L
computes 25 to 55 GB/s per core. Short records are left to one call of ``native/crc32.c`` for all.
"""

import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from isal.isal_zlib import crc32
from torch import Tensor

from framework.contracts import records as contract
from framework.contracts.records import Field, Manifest, Placed, Ragged, Records, RecordStore
from framework.errors import DataError
from framework.store.files import Identity, identify
from framework.store.foreign import refuse_other
from framework.store.gather import Gather, ask_pages, check_range, gather_rows, map_of, should_ask
from framework.system.durable import abandon, publish
from framework.system.native import find

KEYS = "\0keys"  # the name by which a file's keys are read, as if they were image bytes
KEY = Field("uint8", (None,) * 3, "image")
ENCODINGS = ("raw", "ragged", "image", "frames")
# From so many bytes of a value on, ISA-L is faster than the tables of native/crc32.c. Measured on
# an AMD EPYC, ns per value: 256 bytes 155 and 86, 512 bytes 159 and 186.
LONG_BYTES = 448


def to_json(manifest: Manifest) -> str:
    """Return the text, which holds its own CRC32: a flipped bit in a name must be noticed."""
    data = asdict(manifest)
    data["schema"] = contract.SCHEMA
    # json writes ASCII: file names that are not UTF-8 survive as escapes.
    return json.dumps({**data, "crc32": crc32(json.dumps(data).encode())})


def from_json(path: str, text: str | bytes) -> Manifest:
    """Read the manifest of the store at ``path``. DataError D104 if it is damaged or too new."""
    try:
        data = json.loads(text)
        schema = int(data["schema"])
        if schema != contract.SCHEMA:
            what = f"written with schema {schema}, this version reads {contract.SCHEMA}"
            fix = "update paceline" if schema > contract.SCHEMA else "pack it again"
            raise DataError(104, path, what, fix)
        if data.pop("crc32") != crc32(json.dumps(data).encode()):
            raise ValueError("its checksum differs")
        fields: dict[str, Field] = {}
        for name, block in data.pop("fields").items():
            fields[name] = field = Field(**block | {"shape": tuple(block["shape"])})
            torch_dtype(field)
            is_known = field.encoding in ENCODINGS and field.kind in contract.KINDS
            if not is_known or not fits_kind(field):
                raise ValueError(f"field {name!r} is {field.kind} {field.dtype} {field.shape}")
        shards = [contract.Shard(**shard) for shard in data.pop("shards")]
        statistics = {
            name: contract.ChannelStatistics(tuple(block["mean"]), tuple(block["std"]))
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
    if field.kind in (*contract.CARRIED, "audio"):
        return (field.dtype, field.shape) == ("uint8", (None,))
    if field.kind == "boxes":
        return (field.dtype, field.shape) == ("float32", (None, 4))
    return field.kind != "points" or (field.dtype == "float32" and field.shape[-1:] in ((2,), (3,)))


def content_crcs(records: Records, fields: Mapping[str, Field]) -> np.ndarray:
    """Return the CRC32 of each record: over all fields, in the order of ``fields``. uint32 [B]."""
    first = records[next(iter(fields))]
    crcs = np.zeros(len(first.lengths if isinstance(first, Ragged) else first), np.uint32)
    for name in fields:
        crcs = extended_crcs(crcs, records[name])
    return crcs


def extended_crcs(crcs: np.ndarray, values: Any) -> np.ndarray:
    """Return the CRC32s of records (uint32 [B]), extended by a field of theirs."""
    extend = find("paceline_crc32")
    is_array = isinstance(values, Tensor | np.ndarray)
    if extend is None or not is_array or values.nbytes >= LONG_BYTES * max(1, len(values)):
        return np.fromiter(map(crc32, buffers(values), crcs.tolist()), np.uint32, len(crcs))
    rows, extended = np.ascontiguousarray(values), crcs.copy()
    size = rows.nbytes // max(1, len(rows))
    extend(rows.ctypes.data, size, len(rows), extended.ctypes.data)
    return extended


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
    return hashlib.sha256(b"".join(crcs.astype("<u4").tobytes() for crcs in parts)).hexdigest()


def num_bytes(field: Field) -> int:
    """Return the bytes of a record of a raw field, or of a row of a ragged one."""
    shape = field.row_shape if field.encoding == "ragged" else field.shape
    return math.prod(size or 0 for size in shape) * np.dtype(field.dtype).itemsize


def torch_dtype(field: Field) -> torch.dtype:
    """Return the dtype of a field. TypeError if torch lacks it."""
    return torch.from_numpy(np.empty(0, field.dtype)).dtype


class OpenFile(ABC):
    """A store's file, mapped by this process."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.fields = dict(manifest.fields)  # and ``KEYS`` if keys are stored
        self.gathers: dict[str, Gather] = {}  # of the raw fields: what copies their values
        self.begins: dict[str, int] = {}  # the byte of the file where a gather's source begins
        self.row_bytes: dict[str, int] = {}  # of the other fields
        self._sources: dict[str, tuple[Tensor, Any, Callable[[int, int], Any]]] = {}

    def _add(self, name: str, source: np.ndarray, stride: int = 1, begin: int = 0) -> None:
        # The map ``source`` begins at a byte of the file. Raw values lie in it at multiples of
        # ``stride`` bytes.
        source = source.reshape(-1).view(np.uint8)
        field, where = self.fields[name], map_of(source)
        flat, buffer = torch.from_numpy(source), memoryview(source)  # pyright: ignore[reportArgumentType]  # an array is a buffer
        if field.encoding != "raw":
            self.row_bytes[name] = 1
            if field.encoding == "ragged":
                self.row_bytes[name] = num_bytes(field)
            self._sources[name] = flat, where, lambda start, size: buffer[start : start + size]
            return
        shape = tuple(size or 0 for size in field.shape)
        count = math.prod(shape)
        self.gathers[name] = Gather(flat, stride, shape, torch_dtype(field))
        self.begins[name] = begin
        view = partial(np.frombuffer, buffer, field.dtype, count)
        self._sources[name] = flat, where, lambda start, _: view(start).reshape(shape)

    def rows(self, indices: Tensor) -> Any:
        """Return what finds the values of records (int64 [B]) in each of the fields."""
        return indices

    @abstractmethod
    def places(self, name: str, rows: Any) -> Tensor:
        """Return what a raw field's gather takes: int64 [B]."""

    @abstractmethod
    def spans(self, name: str, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return where strings or rows begin in their map, and how many they are: int64 [B]."""

    @abstractmethod
    def differs(self, indices: Tensor, crcs: np.ndarray) -> np.ndarray:
        """Return whether the CRC32s of the records' fields are not the stored ones: bool [B]."""

    def values(self, name: str, rows: Any, is_viewed: bool = False) -> Any:
        """Return the values of a field. Byte strings, and arrays if ``is_viewed``, are views."""
        gather = self.gathers.get(name)
        if gather is not None and not is_viewed:
            return gather(self.places(name, rows))
        source, where, view = self._sources[name]
        if gather is not None:
            places = self.places(name, rows)
            gather.check(places)
            starts = places.numpy() * gather.stride
            return Placed(where[0], starts, np.full(len(starts), gather.num_bytes), view)
        starts, lengths = self.spans(name, rows)
        field = self.fields[name]
        if field.encoding != "ragged":
            return Placed(where[0], starts, lengths, view)
        counts = torch.from_numpy(lengths)
        data = gather_rows(source, torch.from_numpy(starts), counts * self.row_bytes[name])
        return Ragged(data.view(torch_dtype(field)).view(-1, *field.row_shape), counts)

    def ask(self, rows: Any) -> None:
        """Ask the disk for the records."""
        for name in self.manifest.fields:
            if name in self.gathers:
                self.gathers[name].ask(self.places(name, rows))
                continue
            starts, lengths = map(torch.from_numpy, self.spans(name, rows))
            ask_pages(self._sources[name][1], starts, lengths * self.row_bytes[name])


class FileStore(RecordStore):
    """A RecordStore in one file. Each process maps the file when it first needs it."""

    choice: ClassVar[str]  # of data=, for errors
    has_columns = True

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity: Identity | None = None
        # With the number of the process: a forked child must not use the maps of its parent.
        self._mapped: tuple[int, OpenFile] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    def described(self) -> Manifest:
        return self._open().manifest

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        opened = self._open()
        rows = opened.rows(indices)
        if should_ask():
            opened.ask(rows)
        return {name: opened.values(name, rows, name in views) for name in opened.manifest.fields}

    def column(self, name: str) -> Any:
        opened = self._open()
        return opened.values(name, opened.rows(torch.arange(self.manifest.num_records)))

    def lengths(self, name: str) -> Tensor:
        opened = self._open()
        rows = opened.rows(torch.arange(self.manifest.num_records))
        return torch.from_numpy(opened.spans(name, rows)[1])

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        crcs = content_crcs(records, self.manifest.fields)
        return indices[torch.from_numpy(self._open().differs(indices, crcs))].tolist()

    @property
    def paths(self) -> list[str]:
        return [self.path]

    def places(self, indices: Tensor) -> contract.Places:
        check_range(indices, self.manifest.num_records)
        opened = self._open()
        rows = opened.rows(indices)
        starts: dict[str, Tensor] = {}
        for name, gather in opened.gathers.items():
            starts[name] = opened.places(name, rows) * gather.stride + opened.begins[name]
        return contract.Places(torch.zeros_like(indices), starts)

    def key(self, index: int) -> str:
        return self.keys(torch.tensor([index]))[0]

    def keys(self, indices: Tensor) -> list[str]:
        first = self.manifest.first_key
        if first is not None:
            return [str(first + index) for index in indices.tolist()]
        opened = self._open()
        if KEYS not in opened.fields:
            return [""] * len(indices)
        keys = opened.values(KEYS, opened.rows(indices))
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
    def _map(self) -> OpenFile: ...


class FileWriter(ABC):
    """A RecordWriter of exactly ``num_records`` records. ``close`` puts the file in its place."""

    def __init__(self, path: str, fields: Mapping[str, Field], num_records: int) -> None:
        self.path = Path(path)
        self.fields = fields
        self._num_records = num_records
        self._num_written = 0
        self._first_key: int | None = None
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
        if isinstance(keys, contract.NumberKeys) and not self._num_written:
            self._first_key = keys.start
        names: list[bytes] | None = None  # keys are numbers in all calls or in none
        if self._first_key is None:
            names = [key.encode(errors="surrogateescape") for key in keys]
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
        """Write the next records, their keys if keys are stored, and their ``crcs``: uint32 [B]."""

    @abstractmethod
    def _finish(self, manifest: str) -> None:
        """Write what is left and the manifest. Close the temporary file."""

    @abstractmethod
    def _drop(self) -> None:
        """Close the temporary file without completing it."""
