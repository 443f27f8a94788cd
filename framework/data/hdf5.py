"""HDF5 stores: raw fields as contiguous datasets gathered through a memory map, image fields as one byte array with offsets.

Contiguous, because a chunked dataset decodes a whole chunk for every record read at random. Layout: group ``records`` holds a
dataset per raw field, and per image field a group of ``data`` (uint8) and ``offsets`` (int64 [N + 1]); the root attribute
``manifest`` is written last.
"""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import h5py
import numpy as np
import torch
from torch import Tensor

from framework.contracts import Field, Manifest, Records, SourceContext
from framework.data.manifest import from_json, to_json
from framework.data.source import StoreSource
from framework.durable import abandon, publish, temporary_name
from framework.errors import DataError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
ALIGNMENT = 4096  # bytes; lets any dataset be viewed as int64 straight in the map


def hdf5_source(path: str, *, context: SourceContext) -> StoreSource:
    """The records of the HDF5 store at ``path``."""
    return StoreSource(HDF5Store(path), context)


@final
class HDF5Store:
    """A RecordStore over one HDF5 file. Each process maps the file for itself, at its first read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest: Manifest | None = None
        self._maps: dict[str, Any] = {}
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_manifest": self._manifest, "_maps": {}, "_pid": 0}

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            self._open()
        assert self._manifest is not None
        return self._manifest

    def read(self, indices: Tensor) -> Records:
        if self._pid != os.getpid():
            self._open()
        return {name: gather(indices) for name, gather in self._maps.items()}

    def name(self, index: int) -> str:
        return f"{self.path}: record {index}"

    def close(self) -> None:
        self._maps, self._pid = {}, 0

    def _open(self) -> None:
        with _open_file(self.path) as file:
            self._manifest = from_json(self.path, str(file.attrs["manifest"]))
            num_records = self._manifest.num_records
            for name, field in self._manifest.fields.items():
                try:
                    node: Any = file[f"records/{name}"]
                    self._maps[name] = _gather(self.path, node, field, num_records)
                except (KeyError, ValueError, TypeError) as error:
                    what = f"field {name!r} is not as the manifest says ({error})"
                    raise DataError(105, self.path, what, "pack it again") from error
        self._pid = os.getpid()


def _open_file(path: str) -> h5py.File:
    """Open for reading, without locks; DataError where that fails."""
    if not os.path.isfile(path):
        raise DataError(101, path, "no such file", "give the path of a packed store, or make one with 'paceline pack'")
    try:
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        what = "truncated" if "truncated" in str(error) else "not an HDF5 file"
        raise DataError(102, path, f"{what} ({str(error).strip()})", "pack it again, or choose data= by its format") from error
    if "manifest" not in file.attrs:
        file.close()
        raise DataError(103, path, "an HDF5 file, but not a store of ours", "make one with 'paceline pack input=arrays'")
    return file


def _gather(path: str, node: Any, field: Field, num_records: int) -> Any:
    """A function from indices to the field's values."""
    if field.encoding == "raw":
        if node.shape != (num_records, *field.shape) or node.dtype != np.dtype(field.dtype):
            raise ValueError(f"shape {node.shape} of {node.dtype}")
        return RowGather(_map(path, node))
    offsets = node["offsets"][:]
    if len(offsets) != num_records + 1:
        raise ValueError(f"{len(offsets)} offsets")
    return _SliceGather(_map(path, node["data"]).numpy(), offsets)


def _map(path: str, dataset: Any) -> Tensor:
    """The dataset as a tensor over a private memory map of the file; verified to lie there in one piece."""
    if dataset.size == 0:
        return torch.from_numpy(dataset[...])
    offset = dataset.id.get_offset()
    if dataset.chunks is not None or dataset.external or dataset.is_virtual or offset is None:
        raise ValueError("not stored in one piece in this file")
    if offset + dataset.nbytes > os.path.getsize(path):
        raise ValueError("reaches beyond the end of the file")
    # mode "c": pages are shared with the page cache, and torch gets a writable array without any way to change the file
    return torch.from_numpy(np.memmap(path, dataset.dtype, "c", offset, dataset.shape))


@final
class RowGather:
    """Rows of a mapped array, copied in the given order. Through the widest integer that divides a row: 1.4 times as fast as bytes."""

    def __init__(self, rows: Tensor) -> None:
        self.shape, self.dtype = rows.shape[1:], rows.dtype
        flat = rows.reshape(len(rows), self.shape.numel())
        row_bytes = flat.shape[1] * flat.element_size()
        wide = row_bytes and row_bytes % 8 == 0 and flat.data_ptr() % 8 == 0
        self.rows = flat.view(torch.int64) if wide else flat

    def __call__(self, indices: Tensor) -> Tensor:
        return self.rows.index_select(0, indices).view(self.dtype).view(len(indices), *self.shape)


@final
class _SliceGather:
    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        if len(offsets) == 0 or offsets[0] < 0 or offsets[-1] > len(data) or np.any(np.diff(offsets) < 0):
            raise ValueError("offsets out of bounds")
        self.data, self.offsets = memoryview(data), offsets  # pyright: ignore[reportArgumentType]  # an array is a buffer

    def __call__(self, indices: Tensor) -> list[memoryview]:
        first = self.offsets[indices.numpy()].tolist()
        past = self.offsets[indices.numpy() + 1].tolist()
        return [self.data[start:stop] for start, stop in zip(first, past, strict=True)]


@final
class HDF5Writer:
    """A RecordWriter. Raw fields are written where they will stay; image bytes are spooled beside, their total size being unknown."""

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        self.path, self.fields, self._row = Path(path), fields, 0
        self._publish = publish(self.path)
        temporary = self._publish.__enter__()
        self._target = _Target(temporary)
        self._file = h5py.File(self._target, "w", alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT)
        group = self._file.create_group("records")
        self._raw: dict[str, Any] = {}
        self._spools: dict[str, _Spool] = {}
        for name, field in fields.items():
            if field.encoding == "raw":
                self._raw[name] = group.create_dataset(name, (num_records, *field.shape), field.dtype)
            else:
                self._spools[name] = _Spool(temporary_name(self.path))

    def write(self, records: Records) -> None:
        start = self._row
        for name in self.fields:
            self._row = start + len(records[name])
            if name in self._raw:
                self._raw[name][start : self._row] = records[name]
            else:
                self._spools[name].write(records[name])

    def close(self, manifest: Manifest) -> None:
        for name, spool in self._spools.items():
            spool.copy_into(self._file.create_group(f"records/{name}"))
        self._file.attrs["manifest"] = to_json(manifest)
        self._file.flush()  # the last call that may find the disk full
        self._file.close()
        self._target.close()
        self._publish.__exit__(None, None, None)

    def abort(self) -> None:
        if not self._file:  # closed: either committed or aborted already
            return
        self._target.drop = True
        self._file.close()
        self._target.close()
        for spool in self._spools.values():
            spool.close()
        abandon(self._publish)


@final
class _Target(io.FileIO):
    """A file that can be told to forget what is written: HDF5 crashes when it closes a file that it could not write."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+b")
        self.drop = False

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        total = len(left)
        while left and not self.drop:
            left = left[super().write(left) :]
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
        group.create_dataset("offsets", data=np.concatenate([[0], np.cumsum(self._sizes, dtype=np.int64)]).astype(np.int64))
        self._file.seek(0)
        for start in range(0, total, block_bytes):
            block = self._file.read(block_bytes)
            data[start : start + len(block)] = np.frombuffer(block, np.uint8)
        self.close()

    def close(self) -> None:
        self._file.close()
