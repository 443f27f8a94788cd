"""HDF5 stores: raw fields are read through a memory map, and image bytes through offsets.

The file holds ``records``: a contiguous dataset per raw field, and a group of ``data`` (uint8, or
rows of a ragged field) and ``offsets`` (int64 [N + 1]) per other field; ``crc32`` (uint32 [N]);
``keys``, as such a group, unless they are numbers; and the attribute ``manifest`` of the root,
which is written last.
"""

import io
import math
import os
import tempfile
from array import array
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import h5py
import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Placed, Places, Ragged, Records
from framework.errors import DataError, words_of
from framework.store import file_store, foreign_hdf5
from framework.store.gather import ask_pages, gather_rows, map_of, row_gather, should_ask, typed

# HDF5 places datasets of at least so many bytes at multiples of so many bytes: pages of the map.
ALIGNMENT = 4096
# A manifest of fewer bytes fits into an object header, which holds 64 KiB.
MAX_HEADER_MANIFEST_BYTES = 60_000
MOVED_BYTES = 1 << 20  # at a time
KEY = Field("uint8", (None,) * 3, "image")  # a byte string, stored as image bytes are


@final
class HDF5Store(file_store.FileStore):
    """A RecordStore over one HDF5 file."""

    choice = "hdf5"

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        opened = self._open()
        if should_ask():
            for gather in opened.gathers.values():
                gather.ask(indices)
        records: Records = {}
        for name, gather in opened.gathers.items():
            is_viewed = name in views and name in opened.rows
            records[name] = opened.views(name, indices) if is_viewed else gather(indices)
        return records

    def column(self, name: str) -> Any:
        return self._open().gathers[name](torch.arange(self.manifest.num_records))

    def lengths(self, name: str) -> Tensor:
        return self._open().gathers[name].offsets.diff()

    def places(self, indices: Tensor) -> Places:
        file_store.check_range(indices, self.manifest.num_records)
        opened = self._open()
        starts = {
            name: indices * opened.gathers[name].stride + begin
            for name, begin in opened.begins.items()
        }
        return Places(torch.zeros_like(indices), starts)

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        crcs = file_store.content_crcs(records, self.manifest.fields)
        return file_store.mismatches(indices, crcs, self._open().crcs[indices.numpy()])

    def _map(self) -> "OpenHDF5":
        with foreign_hdf5.open_hdf5(self.path) as file:  # maps need none
            return OpenHDF5(self.path, file)


@final
class HDF5Writer(file_store.FileWriter):
    """A RecordWriter. Raw fields are written in place; image bytes wait in temporary files."""

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        super().__init__(path, fields, num_records)
        self._target = _ErrorHidingFile(self._temporary)
        self._file = h5py.File(
            self._target, "w", alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT
        )
        group = self._file.create_group("records")
        self._raw: dict[str, Any] = {}
        self._spools: dict[str, _Spool] = {"keys": _Spool(self.path.parent)}
        self._crcs: Any = self._file.create_dataset("crc32", (num_records,), "uint32")
        for name, field in fields.items():
            if field.encoding == "raw":
                shape = (num_records, *field.shape)
                self._raw[name] = group.create_dataset(name, shape, field.dtype)
                continue
            rows = ("uint8", ())
            if field.encoding == "ragged":
                rows = (field.dtype, field.row_shape)
            self._spools[f"records/{name}"] = _Spool(self.path.parent, *rows)

    def _append(self, records: Records, keys: list[bytes] | None, crcs: np.ndarray) -> None:
        here = slice(self._num_written, self._num_written + len(crcs))
        for name, values in records.items():
            if name in self._raw:
                self._raw[name][here] = values
            else:
                self._spools[f"records/{name}"].write(values)
        if keys is not None:
            self._spools["keys"].write(keys)
        self._crcs[here] = crcs
        self._target.check()

    def _finish(self, manifest: str) -> None:
        if self._first_key is not None:
            self._spools.pop("keys").close()
        for name, spool in self._spools.items():
            spool.move_into(self._file.create_group(name))
        # A short text is stored in the object header, with a fixed length. HDF5 does not check the
        # length of a text outside of the header: a damaged one makes it allocate up to 4 GiB.
        is_short = len(manifest) < MAX_HEADER_MANIFEST_BYTES
        self._file.attrs["manifest"] = np.bytes_(manifest.encode()) if is_short else manifest
        self._file.close()
        self._target.check()
        self._target.close()

    def _drop(self) -> None:
        self._target.ignores_writes = True
        self._file.close()
        self._target.close()
        for spool in self._spools.values():
            spool.close()


@final
class OpenHDF5:
    """The mapped parts of a store's file.

    Each field has a gather: a function from indices to the values of these records. DataError D102,
    D103, D104 without a readable manifest, D105 if it does not match the file.
    """

    def __init__(self, path: str, file: h5py.File) -> None:
        self.path = path
        self.gathers: dict[str, Any] = {}
        self.rows: dict[str, np.ndarray] = {}  # the maps of raw fields
        self.begins: dict[str, int] = {}  # the first byte of each of them in the file
        self.manifest = file_store.from_json(path, _manifest_text(path, file))
        num_records = self.manifest.num_records
        part = "crc32"
        try:
            self.crcs = _memory_map(path, file, part).numpy()  # uint32 [num_records]
            if self.crcs.shape != (num_records,) or self.crcs.dtype != np.uint32:
                raise ValueError(f"{self.crcs.shape} checksums for {num_records} records")
            part = "keys"
            self._keys = _Spans(path, file, part, KEY, num_records) if part in file else None
            for name, field in self.manifest.fields.items():
                part = f"records/{name}"
                if field.encoding != "raw":
                    self.gathers[name] = _Spans(path, file, part, field, num_records)
                    continue
                dataset = foreign_hdf5.own_dataset(file, part)
                shape = (num_records, *field.shape)
                if dataset.shape != shape or dataset.dtype != np.dtype(field.dtype):
                    raise ValueError(f"has shape {dataset.shape} and type {dataset.dtype}")
                rows = _memory_map(path, file, part)
                self.rows[name], self.gathers[name] = rows.numpy(), row_gather(rows)
                self.begins[name] = dataset.id.get_offset() or 0  # None if it is empty
        except foreign_hdf5.H5PY_ERRORS as error:
            what = f"{part} does not match the manifest ({words_of(error, 200)})"
            raise DataError(105, path, what, "pack it again") from error

    def keys(self, indices: Tensor) -> Sequence[Any]:
        """Return the name of each record. All are empty if the file has none."""
        return self._keys(indices) if self._keys is not None else [b""] * len(indices)

    def views(self, name: str, indices: Tensor) -> Placed:
        """Return views of rows of a mapped field. IndexError if one does not exist."""
        array = self.rows[name]
        file_store.check_range(indices, len(array))
        size = array.strides[0]
        lengths = np.full(len(indices), size)
        starts = indices.numpy() * size
        return Placed(array.ctypes.data, starts, lengths, lambda start, _: array[start // size])


def _manifest_text(path: str, file: h5py.File) -> str:
    try:
        if "manifest" in file.attrs:
            # h5py allocates what the file declares, so compare that with the file first.
            size = file.attrs.get_id("manifest").get_storage_size()
            if size > os.path.getsize(path):
                raise ValueError(f"a manifest of {size} bytes")
            text = file.attrs["manifest"]
            return text.decode() if isinstance(text, bytes) else str(text)
    except foreign_hdf5.H5PY_ERRORS as error:
        raise DataError(102, path, f"damaged ({words_of(error, 200)})", "pack it again") from error
    raise DataError(
        103, path, "is an HDF5 file, but not a Paceline store", foreign_hdf5.hdf5_advice(path)
    )


@final
class _Spans:
    """Byte strings, or rows of ragged arrays, one after another in a mapped group.

    Byte strings are views of the map, rows are copied.
    """

    def __init__(
        self, path: str, file: h5py.File, group: str, field: Field, num_records: int
    ) -> None:
        self._is_ragged = field.encoding == "ragged"
        self._row_shape = field.row_shape if self._is_ragged else ()
        data = _memory_map(path, file, f"{group}/data")
        dtype = np.dtype(field.dtype if self._is_ragged else "uint8")
        if tuple(data.shape[1:]) != self._row_shape or data.numpy().dtype != dtype:
            raise ValueError(f"data has shape {tuple(data.shape)} and type {data.dtype}")
        self._dtype = data.dtype
        self._row_bytes = math.prod(self._row_shape) * data.element_size()
        flat = data.numpy().reshape(-1).view(np.uint8)
        self._flat, self._map = torch.from_numpy(flat), map_of(flat)
        buffer = memoryview(flat)  # pyright: ignore[reportArgumentType]  # an array is a buffer
        self._view = lambda start, size: buffer[start : start + size]
        offsets = _memory_map(path, file, f"{group}/offsets")
        self.offsets = offsets  # where each record begins, and the last one's end, in rows
        self._offsets = own = offsets.numpy()
        if own.shape != (num_records + 1,) or own.dtype != np.int64:
            raise ValueError(f"offsets have shape {own.shape} and type {own.dtype}")
        if own[0] < 0 or own[-1] > len(data) or np.any(np.diff(own) < 0):
            raise ValueError("offsets out of bounds")

    def __call__(self, indices: Tensor) -> Placed | Ragged:
        if self._is_ragged:
            starts, lengths = self._rows(indices)
            data = gather_rows(self._flat, starts * self._row_bytes, lengths * self._row_bytes)
            return Ragged(typed(data, self._dtype, self._row_shape), lengths)
        places = indices.numpy()
        starts = self._offsets[places]
        return Placed(self._map.address, starts, self._offsets[places + 1] - starts, self._view)

    def _rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        starts = self.offsets[indices]
        return starts, self.offsets[indices + 1] - starts

    def ask(self, indices: Tensor) -> None:
        """Ask the disk for the records."""
        starts, lengths = self._rows(indices)
        ask_pages(self._map, starts * self._row_bytes, lengths * self._row_bytes)


def _memory_map(path: str, file: h5py.File, name: str) -> Tensor:
    """Return a contiguous dataset as a tensor over a private memory map of the file."""
    dataset = foreign_hdf5.own_dataset(file, name)
    if dataset.size == 0:
        return torch.from_numpy(np.empty(dataset.shape, dataset.dtype))
    offset = dataset.id.get_offset()
    if dataset.chunks is not None or offset is None:
        raise ValueError(f"{name} is not one contiguous block of this file")
    if offset + dataset.nbytes > os.path.getsize(path):
        raise ValueError(f"{name} reaches beyond the end of the file")
    # Mode "c" is copy-on-write: torch gets the writable array that it wants, but a write changes a
    # copy in memory, never the file. Pages that are only read are shared by all processes.
    return torch.from_numpy(np.memmap(path, dataset.dtype, "c", offset, dataset.shape))


@final
class _ErrorHidingFile(io.FileIO):
    """A file that hides write errors from HDF5, which may crash or report a different error.

    After an error, and once ``ignores_writes`` is set, nothing is written any more. ``check``
    raises the hidden error.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+b")
        self.ignores_writes = False
        self._failed: OSError | None = None

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def write(self, data: Any) -> int:
        """Return the size of ``data`` even if it cannot be written."""
        left = memoryview(data).cast("B")
        total = len(left)
        try:
            while left and not self.ignores_writes:
                left = left[super().write(left) :]
        except OSError as error:
            self._failed = error
            self.ignores_writes = True
        return total

    def truncate(self, size: int | None = None) -> int:
        if self.ignores_writes:
            return 0
        return super().truncate(size)


@final
class _Spool:
    """Byte strings, or rows of an array, that wait in a temporary file.

    A dataset needs their total number first.
    """

    def __init__(self, folder: Path, dtype: str = "uint8", row_shape: tuple[int, ...] = ()) -> None:
        # The file has no name, so that a crash leaves nothing behind.
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._lengths = array("q")
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape

    def write(self, values: list[Any]) -> None:
        self._file.writelines(values)
        self._lengths.extend(map(len, values))

    def move_into(self, group: Any) -> None:
        """Write all rows to ``data`` of an HDF5 group, and remove the file.

        ``offsets`` says where each value begins, and the last one's end: int64.
        """
        data = group.create_dataset("data", (sum(self._lengths), *self._row_shape), self._dtype)
        ends = np.cumsum(self._lengths, dtype=np.int64)
        group.create_dataset("offsets", data=np.concatenate([[0], ends]))
        row_bytes = math.prod(self._row_shape) * self._dtype.itemsize
        rows_at_once = max(1, MOVED_BYTES // row_bytes)
        self._file.seek(0)
        for start in range(0, len(data), rows_at_once):
            block = np.frombuffer(self._file.read(rows_at_once * row_bytes), self._dtype)
            rows = block.reshape(-1, *self._row_shape)
            data[start : start + len(rows)] = rows
        self.close()

    def close(self) -> None:
        self._file.close()
