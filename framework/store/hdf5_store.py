"""HDF5 stores: raw fields as contiguous datasets gathered through a memory map, image fields as one byte array with offsets.

Contiguous, because a chunked dataset decodes a whole chunk for every record read at random. Layout: group ``records`` holds a
dataset per raw field, and per image field a group of ``data`` (uint8) and ``offsets`` (int64 [N + 1]); ``crc32`` (uint32 [N]) is of
each record's bytes, the group ``keys`` (``data``, ``offsets``) has the records' names; the root attribute ``manifest`` is written last.
"""

import io
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import h5py
import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Manifest, Records
from framework.errors import ConfigError, DataError
from framework.store.checksum import content_crcs, digest
from framework.store.foreign import MOST_FIELDS, OTHER_WAY, field_name, is_quotable, pack_command
from framework.store.gather import Gather
from framework.store.identity import Identity, identify, nearest
from framework.store.manifest import from_json, to_json
from framework.system.durable import abandon, publish, temporary_name

SIGNATURE = b"\x89HDF\r\n\x1a\n"
ALIGNMENT = 4096  # bytes; lets any dataset be viewed as int64 straight in the map
MOST_SHRUNK = 1100  # times smaller than it was: deflate's limit is 1032; a larger claim is a lie that costs memory
MOST_BESIDE = 60_000  # bytes of an attribute that lie in a header, which has 64 KiB
LIBRARY_ERRORS = (
    KeyError,
    ValueError,
    TypeError,
    RuntimeError,
    OSError,
    NotImplementedError,
)  # h5py's over a damaged file
FILTERS = {
    1,
    2,
    3,
    32000,
}  # deflate, shuffle, fletcher32, lzf: built in; any other would load a plugin from the disk

while h5py.h5pl.size():  # a file must not be able to name code that HDF5 loads
    h5py.h5pl.remove(0)


@final
class HDF5Store:
    """A RecordStore over one HDF5 file. Each process maps the file for itself, at its first read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest: Manifest | None = None
        self._identity: Identity | None = None
        self._opened: _Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            self._open()
        assert self._manifest is not None
        return self._manifest

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        return {
            name: gather.views(indices)
            if name in views and isinstance(gather, RowGather)
            else gather(indices)
            for name, gather in self._open().gathers.items()
        }

    @property
    def chunk_records(self) -> int | None:
        """Records per chunk, where a raw field lies in chunks."""
        return next(
            (
                gather.rows
                for gather in self._open().gathers.values()
                if isinstance(gather, _ChunkGather)
            ),
            None,
        )

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        stored = self._open().crcs[indices].tolist()
        found = content_crcs(records, self.manifest.fields)
        return [
            index
            for index, now, then in zip(indices.tolist(), found, stored, strict=True)
            if now != then
        ]

    def key(self, index: int) -> str:
        keys = self._open().keys
        return (
            ""
            if keys is None
            else bytes(keys(torch.tensor([index]))[0]).decode(errors="surrogateescape")
        )

    def name(self, index: int) -> str:
        key = self.key(index)
        return f"{self.path}: record {index}" + (f" ({key})" if key else "")

    def check(self) -> None:
        identify(self.path, self._identity)

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and opened.file is not None and opened.pid == os.getpid():
            opened.file.close()

    def _open(self) -> "_Opened":
        """What this process has open; made whole before it is shared, since threads may come here together."""
        if (
            self._opened is not None and self._opened.pid == os.getpid()
        ):  # what a fork left here belongs to the parent
            return self._opened
        file, kept = _open_file(self.path), False
        try:
            identity = identify(self.path, self._identity)
            manifest = from_json(self.path, _manifest_text(self.path, file))
            opened = _Opened(self.path, file, manifest)
            self._identity, self._manifest = (
                identify(self.path, identity),
                manifest,
            )  # again: the maps opened it once more
            kept = opened.file is not None
        finally:
            if not kept:
                file.close()
        self._opened = opened
        return opened


@final
class _Opened:
    """The maps of an open file, and a gather per field: a function from indices to values. DataError D105 where the file is not as its manifest says."""

    def __init__(self, path: str, file: h5py.File, manifest: Manifest) -> None:
        self.path, self.pid, num_records, name = path, os.getpid(), manifest.num_records, "crc32"
        self.file: h5py.File | None = (
            None  # stays open where a field has to be read through the library
        )
        self.gathers: dict[str, Any] = {}
        try:
            self.crcs = torch.from_numpy(_map(path, _node(file, "crc32")).numpy().astype(np.int64))
            if self.crcs.shape != (num_records,):
                raise ValueError(f"{len(self.crcs)} checksums")
            self.keys = _bytes_gather(path, file, "keys", num_records) if "keys" in file else None
            for name, field in manifest.fields.items():
                self.gathers[name] = self._gather(file, name, field, num_records)
        except LIBRARY_ERRORS as error:
            what = f"field {name!r} is not as the manifest says ({_one_line(error)})"
            raise DataError(105, path, what, "pack it again") from error

    def _gather(self, file: h5py.File, name: str, field: Field, num_records: int) -> Any:
        if field.encoding != "raw":
            return _bytes_gather(self.path, file, f"records/{name}", num_records)
        dataset = _node(file, f"records/{name}")
        if dataset.shape != (num_records, *field.shape) or dataset.dtype != np.dtype(field.dtype):
            raise ValueError(f"shape {dataset.shape} of {dataset.dtype}")
        if dataset.chunks is None:
            return RowGather(_map(self.path, dataset))
        if dataset.nbytes > MOST_SHRUNK * os.path.getsize(self.path):
            raise ValueError(f"declares {dataset.nbytes} bytes, more than the file can hold")
        self.file = file
        return _ChunkGather(self.path, dataset)


def _open_file(path: str) -> h5py.File:
    """Open for reading, without locks; DataError where that fails."""
    if not os.path.isfile(path):
        raise DataError(
            101,
            path,
            f"no such file{nearest(path)}",
            "give the path of a packed store, or make one with 'paceline pack'",
        )
    try:
        file = h5py.File(path, "r", locking=False)
    except PermissionError as error:
        raise DataError(
            101, path, "cannot be read: Permission denied", "look at its permissions"
        ) from error
    except OSError as error:
        what = "truncated" if "truncated" in str(error) else "not an HDF5 file"
        raise DataError(
            102,
            path,
            f"{what} ({str(error).strip()})",
            "pack it again, or choose data= by its format",
        ) from error
    return file


def _manifest_text(path: str, file: h5py.File) -> str:
    try:
        if "manifest" in file.attrs:
            size = file.attrs.get_id("manifest").get_storage_size()
            if size > os.path.getsize(path):
                raise ValueError(f"a manifest of {size} bytes")
            text = file.attrs["manifest"]
            return text.decode() if isinstance(text, bytes) else str(text)
    except LIBRARY_ERRORS as error:
        raise DataError(102, path, f"damaged ({_one_line(error)})", "pack it again") from error
    raise DataError(103, path, "an HDF5 file, but not a store of ours", _advice(path, file))


def _advice(path: str, file: h5py.File) -> str:
    """What to do with another program's file: the command that packs those of its datasets that have the most in common."""
    try:
        datasets = {name: rows for name, rows in _datasets(path, file).items() if is_quotable(name)}
    except LIBRARY_ERRORS:
        return OTHER_WAY
    lengths = Counter(len(rows) for rows in datasets.values())
    if not lengths:
        return OTHER_WAY
    length = max(lengths, key=lambda length: (lengths[length], length))
    fields: dict[str, str] = {}
    for name, rows in datasets.items():
        if len(rows) == length and len(fields) < MOST_FIELDS:
            fields[field_name(name.rpartition("/")[2], fields)] = name
    return pack_command("arrays", path, fields)


@final
class HDF5Rows:
    """A dataset of any HDF5 file, whose rows are read when asked for, in any process.

    Attributes:
        shape: with the number of rows first.
        dtype: of plain numbers.

    """

    def __init__(self, path: str, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.path, self.name, self.shape, self.dtype, self.ndim = (
            path,
            name,
            shape,
            dtype,
            len(shape),
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """The rows, read through the library. DataError D102."""
        with _open_file(self.path) as file:
            try:
                return np.asarray(_node(file, self.name)[rows])
            except LIBRARY_ERRORS as error:
                what = f"dataset {self.name!r} cannot be read ({_one_line(error)})"
                raise DataError(102, self.path, what, "get the file again") from error


def foreign_datasets(path: str) -> dict[str, HDF5Rows]:
    """The datasets of plain numbers in any HDF5 file, by their names, ``group/dataset``, that have rows. DataError D101, D102."""
    with _open_file(path) as file:
        try:
            return _datasets(path, file)
        except LIBRARY_ERRORS as error:
            raise DataError(
                102, path, f"damaged ({_one_line(error)})", "get the file again"
            ) from error


def _datasets(path: str, file: h5py.File) -> dict[str, HDF5Rows]:
    found: dict[str, HDF5Rows] = {}

    def look(name: str, node: Any) -> None:
        if (
            isinstance(node, h5py.Dataset)
            and node.shape
            and node.size
            and node.dtype.kind in "biufc"
        ):
            with suppress(
                *LIBRARY_ERRORS
            ):  # stored outside this file, or with a filter that would be loaded
                _node(file, name)
                if node.nbytes <= MOST_SHRUNK * os.path.getsize(path):
                    found[name] = HDF5Rows(path, name, node.shape, node.dtype)

    file.visititems(look)
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _node(file: h5py.File, path: str) -> Any:
    """The dataset at ``path``, reached by hard links only and stored in this file alone: a file may otherwise make us read any other."""
    node: Any = file
    for part in path.split("/"):
        if not isinstance(node, h5py.Group) or not isinstance(
            node.get(part, getlink=True), h5py.HardLink
        ):
            raise ValueError(f"{path!r} is not in this file")  # noqa: TRY004  # it is the file that is wrong
        node = node[part]
    if not isinstance(node, h5py.Dataset) or node.external or node.is_virtual:
        raise ValueError(f"{path!r} is stored outside this file")
    filters = node.id.get_create_plist()
    if any(filters.get_filter(n)[0] not in FILTERS for n in range(filters.get_nfilters())):
        raise ValueError(f"{path!r} wants a filter plugin")
    return node


def _bytes_gather(path: str, file: h5py.File, group: str, num_records: int) -> "_SliceGather":
    offsets = _map(path, _node(file, f"{group}/offsets")).numpy()
    if len(offsets) != num_records + 1 or offsets.dtype != np.int64:
        raise ValueError(f"{len(offsets)} offsets")
    data = _map(path, _node(file, f"{group}/data")).numpy()
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ValueError(f"bytes of {data.dtype}, shape {data.shape}")
    return _SliceGather(data, offsets)


def _map(path: str, dataset: Any) -> Tensor:
    """The dataset as a tensor over a private memory map of the file; verified to lie there in one piece."""
    if dataset.size == 0:
        return torch.from_numpy(np.empty(dataset.shape, dataset.dtype))
    offset = dataset.id.get_offset()
    if dataset.chunks is not None or offset is None:
        raise ValueError("not stored in one piece in this file")
    if offset + dataset.nbytes > os.path.getsize(path):
        raise ValueError("reaches beyond the end of the file")
    # mode "c": pages are shared with the page cache, and torch gets a writable array without any way to change the file
    return torch.from_numpy(np.memmap(path, dataset.dtype, "c", offset, dataset.shape))


@final
class RowGather:
    """Rows of a mapped array, copied in the given order."""

    def __init__(self, rows: Tensor) -> None:
        self._array: np.ndarray = rows.numpy()
        row_bytes = rows.shape[1:].numel() * rows.element_size()
        flat = torch.from_numpy(self._array.reshape(-1).view(np.uint8))
        self._gather = Gather(flat, row_bytes, tuple(rows.shape[1:]), rows.dtype)

    def views(self, indices: Tensor) -> list[np.ndarray]:
        """The rows where they are."""
        return [self._array[index] for index in indices.tolist()]

    def __call__(self, indices: Tensor) -> Tensor:
        return self._gather(indices)


@final
class _ChunkGather:
    """Rows of a chunked, perhaps compressed dataset, through the library: each chunk that holds a wanted row is decoded once."""

    def __init__(self, path: str, dataset: Any) -> None:
        self.path, self.dataset, self.rows = path, dataset, dataset.chunks[0]

    def __call__(self, indices: Tensor) -> Tensor:
        wanted = indices.numpy()
        result = np.empty((len(wanted), *self.dataset.shape[1:]), self.dataset.dtype)
        chunks = wanted // self.rows
        for chunk in np.unique(chunks):
            start = int(chunk) * self.rows
            places = np.flatnonzero(chunks == chunk)
            try:
                rows = self.dataset[start : start + self.rows]
            except LIBRARY_ERRORS as error:
                what = f"a chunk cannot be read ({_one_line(error)})"
                raise DataError(
                    102, f"{self.path}: records {start}..", what, "pack it again"
                ) from error
            result[places] = rows[wanted[places] - start]
        return torch.from_numpy(result)


@final
class _SliceGather:
    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        if (
            len(offsets) == 0
            or offsets[0] < 0
            or offsets[-1] > len(data)
            or np.any(np.diff(offsets) < 0)
        ):
            raise ValueError("offsets out of bounds")
        self.data, self.offsets = memoryview(data), offsets  # pyright: ignore[reportArgumentType]  # an array is a buffer

    def __call__(self, indices: Tensor) -> list[memoryview]:
        first = self.offsets[indices.numpy()].tolist()
        past = self.offsets[indices.numpy() + 1].tolist()
        return [self.data[start:stop] for start, stop in zip(first, past, strict=True)]


@final
class HDF5Writer:
    """A RecordWriter. Raw fields are written where they will stay; bytes are spooled beside, their total size being unknown.

    ``chunk_records`` with ``compression`` (gzip or lzf): store raw fields in compressed chunks of so many records. Smaller, but slow
    to read at random, a whole chunk being decoded for a record: for data that is read in order, or in chunks of one record.
    """

    def __init__(
        self,
        path: str,
        chunk_records: int | None = None,
        compression: str | None = None,
        *,
        fields: Mapping[str, Field],
        num_records: int,
    ) -> None:
        _check_layout(chunk_records, compression)
        self.path, self.fields, self._num_records, self._row, self._open = (
            Path(path),
            fields,
            num_records,
            0,
            True,
        )
        self._publish = publish(self.path)
        temporary = self._publish.__enter__()
        self._target = _Target(temporary)
        self._file = h5py.File(
            self._target, "w", alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT
        )
        group = self._file.create_group("records")
        self._raw: dict[str, Any] = {}
        self._spools: dict[str, _Spool] = {"keys": _Spool(temporary_name(self.path))}
        self._crcs: list[int] = []
        for name, field in fields.items():
            if field.encoding != "raw":
                self._spools[f"records/{name}"] = _Spool(temporary_name(self.path))
                continue
            chunks = (
                None
                if chunk_records is None
                else (min(chunk_records, max(1, num_records)), *(s or 1 for s in field.shape))
            )
            shape = (num_records, *field.shape)
            self._raw[name] = group.create_dataset(
                name, shape, field.dtype, chunks=chunks, compression=compression
            )

    def write(self, records: Records, keys: Sequence[str]) -> None:
        start, self._row = self._row, self._row + len(keys)
        records = {name: _as_stored(records[name], field) for name, field in self.fields.items()}
        for name in self.fields:
            if name in self._raw:
                self._raw[name][start : self._row] = records[name]
            else:
                self._spools[f"records/{name}"].write(records[name])
        self._spools["keys"].write([key.encode(errors="surrogateescape") for key in keys])
        self._crcs += content_crcs(records, self.fields)
        self._target.check()

    def close(self, manifest: Manifest) -> None:
        if self._row != self._num_records:
            raise DataError(
                105,
                str(self.path),
                f"{self._row} records written, {self._num_records} announced",
                "report this",
            )
        for name, spool in self._spools.items():
            spool.copy_into(self._file.create_group(name))
        self._file.create_dataset("crc32", data=np.array(self._crcs, np.uint32))
        text = to_json(replace(manifest, digest=digest(self._crcs)))
        # with its length beside it, where HDF5 can: of a text elsewhere in the file it would believe a garbled length, and take 4 GiB
        self._file.attrs["manifest"] = np.bytes_(text.encode()) if len(text) < MOST_BESIDE else text
        self._file.close()
        self._target.check()
        self._target.close()
        self._open = False
        self._publish.__exit__(None, None, None)

    def abort(self) -> None:
        if not self._open:  # either committed or aborted already
            return
        self._open = False
        self._target.drop = True
        self._file.close()
        self._target.close()
        for spool in self._spools.values():
            spool.close()
        abandon(self._publish)


def _as_stored(values: Any, field: Field) -> Any:
    return values if field.encoding != "raw" else np.ascontiguousarray(values, dtype=field.dtype)


def _check_layout(chunk_records: int | None, compression: str | None) -> None:
    if compression is not None and chunk_records is None:
        raise ConfigError(
            170,
            f"compression = {compression}",
            "only chunks can be compressed",
            "set chunk_records too",
        )
    if compression not in (None, "gzip", "lzf") or (
        chunk_records is not None and chunk_records < 1
    ):
        where = f"chunk_records = {chunk_records}, compression = {compression}"
        raise ConfigError(
            170,
            where,
            "not a layout",
            "give chunk_records of at least 1; compression gzip, lzf or null",
        )


@final
class _Target(io.FileIO):
    """A file that HDF5 never sees failing, nor full: it crashes, or hides the error behind another, when it could not write. ``check``
    raises what went wrong; what is written after that, or after ``drop`` is set, is forgotten.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+b")
        self.drop = False
        self._failed: OSError | None = None

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        total = len(left)
        try:
            while left and not self.drop:
                left = left[super().write(left) :]
        except OSError as error:
            self._failed, self.drop = error, True
        return total

    def truncate(self, size: int | None = None) -> int:
        return 0 if self.drop else super().truncate(size)


@final
class _Spool:
    """Byte strings of unknown total size, kept in a file without a name until they are copied into HDF5."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "x+b")  # noqa: SIM115
        os.unlink(path)  # nothing can be left behind
        self._sizes: list[int] = []

    def write(self, values: list[bytes]) -> None:
        self._file.writelines(values)
        self._sizes.extend(map(len, values))

    def copy_into(self, group: Any, block_bytes: int = 16 << 20) -> None:
        total = sum(self._sizes)
        data = group.create_dataset("data", (total,), "uint8")
        group.create_dataset(
            "offsets",
            data=np.concatenate([[0], np.cumsum(self._sizes, dtype=np.int64)]).astype(np.int64),
        )
        self._file.seek(0)
        for start in range(0, total, block_bytes):
            block = self._file.read(block_bytes)
            data[start : start + len(block)] = np.frombuffer(block, np.uint8)
        self.close()

    def close(self) -> None:
        self._file.close()
