"""HDF5 stores: raw fields are read through a memory map, and image bytes through offsets.

Raw fields are contiguous by default, because one random read of a chunked dataset decodes a chunk.
The file holds:

- ``records``: a dataset per raw field; a group of ``data`` (uint8) and ``offsets`` (int64 [N + 1])
  per image field;
- ``crc32`` (uint32 [N]): the checksum of each record;
- ``keys``: the names of the records, as ``data`` and ``offsets``;
- the attribute ``manifest`` of the root, which is written last.
"""

import io
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import h5py
import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Manifest, Records
from framework.errors import ConfigError, DataError, words_of
from framework.store.checksum import content_crcs, mismatches
from framework.store.file_store import FileStore, FileWriter
from framework.store.foreign import MOST_FIELDS, OTHER_WAY, field_name, is_quotable, pack_command
from framework.store.gather import row_gather
from framework.store.identity import check_exists
from framework.store.manifest import from_json

ALIGNMENT = 4096  # bytes; the map can view any aligned dataset as int64
MOST_SHRUNK = 1100  # deflate shrinks at most 1032 times; a larger claim is false and costs memory
MOST_BESIDE = 60_000  # bytes of a manifest that fits into an object header of 64 KiB
FILTERS = {1, 2, 3, 32000}  # deflate, shuffle, fletcher32, lzf: built in; others load a plugin
# What h5py raises for a damaged file.
LIBRARY_ERRORS = (KeyError, ValueError, TypeError, RuntimeError, OSError, NotImplementedError)

while h5py.h5pl.size():  # no file may name a plugin that HDF5 loads
    h5py.h5pl.remove(0)


@final
class HDF5Store(FileStore["_Maps"]):
    """A RecordStore over one HDF5 file."""

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        maps = self._open()
        records: Records = {}
        for name, gather in maps.gathers.items():
            if name in views and name in maps.arrays:
                records[name] = [maps.arrays[name][index] for index in indices.tolist()]
            else:
                records[name] = gather(indices)
        return records

    @property
    def chunk_records(self) -> int | None:
        """Records per chunk of the first chunked field, or None."""
        gathers = self._open().gathers.values()
        return next((gather.rows for gather in gathers if isinstance(gather, _ChunkGather)), None)

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        crcs = content_crcs(records, self.manifest.fields)
        return mismatches(indices, crcs, self._open().crcs[indices])

    def close(self) -> None:
        mapped = self._mapped
        super().close()
        if mapped is not None and mapped[0] == os.getpid() and mapped[1].file is not None:
            mapped[1].file.close()

    def _map(self) -> "_Maps":
        with ExitStack() as stack:
            file = stack.enter_context(_open_file(self.path))
            maps = _Maps(self.path, file, from_json(self.path, _manifest_text(self.path, file)))
            if maps.file is not None:
                stack.pop_all()  # keep the file open
        return maps


@final
class HDF5Writer(FileWriter):
    """A RecordWriter. Raw fields are written in place; image bytes wait in temporary files.

    Args:
        chunk_records: records per chunk of a raw field; None: contiguous, the fastest to read.
        compression: of chunks: gzip, lzf or None. Chunks suit data that is read in order.
        others: those of ``FileWriter``.
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
        super().__init__(path, fields, num_records)
        self._target = _Target(self._temporary)
        self._file = h5py.File(
            self._target, "w", alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT
        )
        group = self._file.create_group("records")
        self._raw: dict[str, Any] = {}
        self._spools: dict[str, _Spool] = {"keys": _Spool(self.path.parent)}
        for name, field in fields.items():
            if field.encoding != "raw":
                self._spools[f"records/{name}"] = _Spool(self.path.parent)
                continue
            chunks = None
            if chunk_records is not None:
                rows = min(chunk_records, max(1, num_records))
                chunks = (rows, *(size or 1 for size in field.shape))
            shape = (num_records, *field.shape)
            self._raw[name] = group.create_dataset(
                name, shape, field.dtype, chunks=chunks, compression=compression
            )

    def _append(self, records: Records, keys: list[bytes], crcs: list[int]) -> None:
        start = len(self._crcs)
        for name, values in records.items():
            if name in self._raw:
                self._raw[name][start : start + len(keys)] = values
            else:
                self._spools[f"records/{name}"].write(values)
        self._spools["keys"].write(keys)
        self._target.check()

    def _finish(self, manifest: str) -> None:
        for name, spool in self._spools.items():
            spool.copy_into(self._file.create_group(name))
        self._file.create_dataset("crc32", data=np.array(self._crcs, np.uint32))
        # A short text lies in the header, with its length. HDF5 would trust the damaged length of a
        # text that lies elsewhere, and take up to 4 GiB.
        is_short = len(manifest) < MOST_BESIDE
        self._file.attrs["manifest"] = np.bytes_(manifest.encode()) if is_short else manifest
        self._file.close()
        self._target.check()
        self._target.close()

    def _drop(self) -> None:
        self._target.drop = True
        self._file.close()
        self._target.close()
        for spool in self._spools.values():
            spool.close()


@final
@dataclass(frozen=True)
class HDF5Rows:
    """A dataset of numbers in any HDF5 file. Each slice is read from disk. Picklable."""

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        with _open_file(self.path) as file:
            try:
                return np.asarray(_own_dataset(file, self.name)[rows])
            except LIBRARY_ERRORS as error:
                what = f"dataset {self.name!r} cannot be read ({words_of(error, 200)})"
                raise DataError(102, self.path, what, "get the file again") from error


def foreign_datasets(path: str) -> dict[str, HDF5Rows]:
    """Return the datasets of numbers in any HDF5 file by their names, ``group/dataset``.

    Raises:
        DataError: D101 if the file is missing; D102 if it cannot be read.
    """
    with _open_file(path) as file:
        try:
            return _datasets(path, file)
        except LIBRARY_ERRORS as error:
            what = f"damaged ({words_of(error, 200)})"
            raise DataError(102, path, what, "get the file again") from error


def _open_file(path: str) -> h5py.File:
    """Open a file for reading, without locks. DataError D101, D102."""
    check_exists(path)
    try:
        return h5py.File(path, "r", locking=False)
    except PermissionError as error:
        what = "cannot be read: Permission denied"
        raise DataError(101, path, what, "look at its permissions") from error
    except OSError as error:
        what = "truncated" if "truncated" in str(error) else "not an HDF5 file"
        fix = "pack it again, or choose data= by its format"
        raise DataError(102, path, f"{what} ({str(error).strip()})", fix) from error


def _manifest_text(path: str, file: h5py.File) -> str:
    try:
        if "manifest" in file.attrs:
            size = file.attrs.get_id("manifest").get_storage_size()
            if size > os.path.getsize(path):
                raise ValueError(f"a manifest of {size} bytes")
            text = file.attrs["manifest"]
            if isinstance(text, bytes):
                text = text.decode()
            return str(text)
    except LIBRARY_ERRORS as error:
        raise DataError(102, path, f"damaged ({words_of(error, 200)})", "pack it again") from error
    raise DataError(103, path, "is an HDF5 file, but not a Paceline store", _advice(path, file))


def _advice(path: str, file: h5py.File) -> str:
    """Suggest the command that packs another program's file: most datasets of equal length."""
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


def _datasets(path: str, file: h5py.File) -> dict[str, HDF5Rows]:
    datasets: dict[str, HDF5Rows] = {}
    most_bytes = MOST_SHRUNK * os.path.getsize(path)

    def visit(name: str, node: Any) -> None:
        if not isinstance(node, h5py.Dataset) or not node.shape or not node.size:
            return
        if node.dtype.kind in "biufc" and node.nbytes <= most_bytes:
            # A dataset that is stored elsewhere or needs a plugin is left out.
            with suppress(*LIBRARY_ERRORS):
                _own_dataset(file, name)
                datasets[name] = HDF5Rows(path, name, node.shape, node.dtype)

    file.visititems(visit)
    return datasets


@final
class _Maps:
    """An open file with a gather per field: a function from indices to values.

    Raises DataError D105 if the file does not agree with its manifest.
    """

    def __init__(self, path: str, file: h5py.File, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.file: h5py.File | None = None  # open if a field is read through the library
        self.gathers: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray] = {}  # contiguous raw fields
        num_records = manifest.num_records
        name = "crc32"
        try:
            self.crcs = torch.from_numpy(_map(path, file, "crc32").numpy().astype(np.int64))
            if self.crcs.shape != (num_records,):
                raise ValueError(f"{len(self.crcs)} checksums")
            self.keys: Any = lambda indices: [b""] * len(indices)
            if "keys" in file:
                self.keys = _SliceGather(path, file, "keys", num_records)
            for name, field in manifest.fields.items():
                self.gathers[name] = self._gather(file, name, field, num_records)
        except LIBRARY_ERRORS as error:
            what = f"field {name!r} is not as the manifest says ({words_of(error, 200)})"
            raise DataError(105, path, what, "pack it again") from error

    def _gather(self, file: h5py.File, name: str, field: Field, num_records: int) -> Any:
        if field.encoding != "raw":
            return _SliceGather(self.path, file, f"records/{name}", num_records)
        dataset = _own_dataset(file, f"records/{name}")
        if dataset.shape != (num_records, *field.shape) or dataset.dtype != np.dtype(field.dtype):
            raise ValueError(f"shape {dataset.shape} of {dataset.dtype}")
        if dataset.chunks is None:
            rows = _map(self.path, file, f"records/{name}")
            self.arrays[name] = rows.numpy()
            return row_gather(rows)
        if dataset.nbytes > MOST_SHRUNK * os.path.getsize(self.path):
            raise ValueError(f"declares {dataset.nbytes} bytes, more than the file can hold")
        self.file = file
        return _ChunkGather(self.path, dataset)


@final
class _SliceGather:
    """Views of byte strings that lie one after another in a mapped group."""

    def __init__(self, path: str, file: h5py.File, group: str, num_records: int) -> None:
        offsets = _map(path, file, f"{group}/offsets").numpy()
        if offsets.shape != (num_records + 1,) or offsets.dtype != np.int64:
            raise ValueError(f"offsets of {offsets.dtype}, shape {offsets.shape}")
        data = _map(path, file, f"{group}/data").numpy()
        if data.dtype != np.uint8 or data.ndim != 1:
            raise ValueError(f"bytes of {data.dtype}, shape {data.shape}")
        if offsets[0] < 0 or offsets[-1] > len(data) or np.any(np.diff(offsets) < 0):
            raise ValueError("offsets out of bounds")
        self.data = memoryview(data)  # pyright: ignore[reportArgumentType]  # an array is a buffer
        self.offsets = offsets

    def __call__(self, indices: Tensor) -> list[memoryview]:
        first = self.offsets[indices.numpy()].tolist()
        past = self.offsets[indices.numpy() + 1].tolist()
        return [self.data[start:stop] for start, stop in zip(first, past, strict=True)]


@final
class _ChunkGather:
    """Reads rows of a chunked dataset through the library, and decodes each needed chunk once."""

    def __init__(self, path: str, dataset: Any) -> None:
        self.path = path
        self.dataset = dataset
        self.rows = dataset.chunks[0]

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
                where = f"{self.path}: records {start}.."
                what = f"a chunk cannot be read ({words_of(error, 200)})"
                raise DataError(102, where, what, "pack it again") from error
            result[places] = rows[wanted[places] - start]
        return torch.from_numpy(result)


def _map(path: str, file: h5py.File, name: str) -> Tensor:
    """Return a contiguous dataset as a tensor over a private memory map of the file."""
    dataset = _own_dataset(file, name)
    if dataset.size == 0:
        return torch.from_numpy(np.empty(dataset.shape, dataset.dtype))
    offset = dataset.id.get_offset()
    if dataset.chunks is not None or offset is None:
        raise ValueError("not stored in one piece in this file")
    if offset + dataset.nbytes > os.path.getsize(path):
        raise ValueError("reaches beyond the end of the file")
    # Mode "c" shares the page cache. Torch gets a writable array that cannot change the file.
    return torch.from_numpy(np.memmap(path, dataset.dtype, "c", offset, dataset.shape))


def _own_dataset(file: h5py.File, path: str) -> Any:
    """Return a dataset that lies in this file alone, so that no file makes us read another one."""
    node: Any = file
    for part in path.split("/"):
        is_group = isinstance(node, h5py.Group)
        if not is_group or not isinstance(node.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{path!r} is not in this file")
        node = node[part]
    if not isinstance(node, h5py.Dataset) or node.external or node.is_virtual:
        raise ValueError(f"{path!r} is stored outside this file")
    filters = node.id.get_create_plist()
    if any(filters.get_filter(n)[0] not in FILTERS for n in range(filters.get_nfilters())):
        raise ValueError(f"{path!r} needs a filter plugin")
    return node


def _check_layout(chunk_records: int | None, compression: str | None) -> None:
    if compression is not None and chunk_records is None:
        where = f"compression = {compression}"
        raise ConfigError(170, where, "only chunks can be compressed", "set chunk_records too")
    too_few = chunk_records is not None and chunk_records < 1
    if too_few or compression not in (None, "gzip", "lzf"):
        where = f"chunk_records = {chunk_records}, compression = {compression}"
        fix = "give chunk_records of at least 1; compression gzip, lzf or null"
        raise ConfigError(170, where, "not a layout", fix)


@final
class _Target(io.FileIO):
    """A file that hides write errors from HDF5, which crashes on them or reports another error.

    After an error, or once ``drop`` is set, writes are ignored. ``check`` raises the error.
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
            self._failed = error
            self.drop = True
        return total

    def truncate(self, size: int | None = None) -> int:
        if self.drop:
            return 0
        return super().truncate(size)


@final
class _Spool:
    """Byte strings of unknown total size, kept in an unnamed file until HDF5 copies them."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # a crash leaves nothing behind
        self._sizes: list[int] = []

    def write(self, values: list[bytes]) -> None:
        self._file.writelines(values)
        self._sizes.extend(map(len, values))

    def copy_into(self, group: Any, block_bytes: int = 16 << 20) -> None:
        offsets = np.cumsum([0, *self._sizes], dtype=np.int64)
        data = group.create_dataset("data", (offsets[-1],), "uint8")
        group.create_dataset("offsets", data=offsets)
        self._file.seek(0)
        for start in range(0, int(offsets[-1]), block_bytes):
            block = self._file.read(block_bytes)
            data[start : start + len(block)] = np.frombuffer(block, np.uint8)
        self.close()

    def close(self) -> None:
        self._file.close()
