"""HDF5 stores: raw fields are read through a memory map, and image bytes through offsets.

The file holds ``records``: a contiguous dataset per raw field, and a group of ``data`` (uint8, or
rows of a ragged field) and ``offsets`` (int64 [N + 1]) per other field; ``crc32`` (uint32 [N]);
``keys``, as such a group, unless they are numbers; and last the root's attribute ``manifest``.
"""

import io
import math
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import h5py
import numpy as np
from torch import Tensor

from framework.contracts.records import Field, Records
from framework.errors import DataError, words_of
from framework.store import file_store, foreign
from framework.store.files import missing, unreadable

ALIGNMENT = 4096  # of datasets of at least so many bytes: pages of the map
MAX_HEADER_MANIFEST_BYTES = 60_000  # fit into an object header, which holds 64 KiB
MOVED_BYTES = 1 << 20  # at a time
MAX_COMPRESSION_RATIO = 1100  # deflate shrinks data at most 1032 times
BUILT_IN_FILTERS = {1, 2, 3, 32000}  # deflate, shuffle, fletcher32 and lzf; others are plugins
H5PY_ERRORS = (*foreign.DAMAGE, TypeError, RuntimeError)  # for a damaged file
FIX = "download or copy the file again"
CACHE_BYTES = 64 << 20  # of chunks that are decompressed: packing reads a few records at a time
# A value of any length in its data set. HDF5 allocates what the length says.
ELEMENT = np.dtype([("length", "<u4"), ("place", "V12")])
MOST_DIMENSIONS = 32  # of an array of torch's or NumPy's that a store can hold

# HDF5 runs code from these folders if a file names a plugin as its filter. Remove all of them.
while h5py.h5pl.size():
    h5py.h5pl.remove(0)


@final
class HDF5Store(file_store.FileStore):
    """A RecordStore over one HDF5 file."""

    choice = "hdf5"

    def _map(self) -> "OpenHDF5":
        with open_hdf5(self.path) as file:  # maps need none
            return OpenHDF5(self.path, file)


@final
class HDF5Writer(file_store.FileWriter):
    """A RecordWriter. Raw fields are written in place; other values wait in temporary files."""

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        super().__init__(path, fields, num_records)
        self._target = _ErrorHidingFile(self._temporary)
        self._file = h5py.File(
            self._target, "w", alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT
        )
        group = self._file.create_group("records")
        self._raw: dict[str, Any] = {}
        keys = _Spool(self.path.parent, *_row_of(file_store.KEY))
        self._spools: dict[str, _Spool] = {"keys": keys}
        self._crcs: Any = self._file.create_dataset("crc32", (num_records,), "uint32")
        for name, field in fields.items():
            if field.encoding == "raw":
                shape = (num_records, *field.shape)
                self._raw[name] = group.create_dataset(name, shape, field.dtype)
                continue
            self._spools[f"records/{name}"] = _Spool(self.path.parent, *_row_of(field))

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
class OpenHDF5(file_store.OpenFile):
    """The mapped parts of a store's file. DataError D102 to D105."""

    def __init__(self, path: str, file: h5py.File) -> None:
        try:
            text: Any = None
            if "manifest" in file.attrs:
                # h5py allocates what the file declares, so compare that with the file first.
                size = file.attrs.get_id("manifest").get_storage_size()
                if size > os.path.getsize(path):
                    raise ValueError(f"a manifest of {size} bytes")
                text = file.attrs["manifest"]
        except H5PY_ERRORS as error:
            what = f"damaged ({words_of(error, 200)})"
            raise DataError(102, path, what, "pack it again") from error
        if text is None:
            what = "is an HDF5 file, but not a Paceline store"
            raise DataError(103, path, what, hdf5_advice(path))
        super().__init__(file_store.from_json(path, text))
        self._offsets: dict[str, np.ndarray] = {}  # in rows: where values begin, and the last ends
        num_records = self.manifest.num_records
        part = "crc32"
        try:
            self._crcs, _ = _memory_map(file, part, ("uint32", ()), num_records)
            if "keys" in file:
                self.fields[file_store.KEYS] = file_store.KEY
            for name, field in self.fields.items():
                part = "keys" if name == file_store.KEYS else f"records/{name}"
                if field.encoding == "raw":
                    rows = field.dtype, field.shape
                    data, begin = _memory_map(file, part, rows, num_records)
                    self._add(name, data, file_store.num_bytes(field), begin)
                    continue
                data, _ = _memory_map(file, f"{part}/data", _row_of(field))
                rows = "int64", ()
                offsets, _ = _memory_map(file, f"{part}/offsets", rows, num_records + 1)
                if offsets[0] < 0 or offsets[-1] > len(data) or np.any(np.diff(offsets) < 0):
                    raise ValueError("offsets out of bounds")
                self._offsets[name] = offsets
                self._add(name, data)
        except H5PY_ERRORS as error:
            what = f"{part} does not match the manifest ({words_of(error, 200)})"
            raise DataError(105, path, what, "pack it again") from error

    def places(self, name: str, rows: Tensor) -> Tensor:
        return rows

    def spans(self, name: str, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        offsets, places = self._offsets[name], rows.numpy()
        starts = offsets[places]
        lengths = offsets[places + 1] - starts
        return starts * self.row_bytes[name], lengths

    def differs(self, indices: Tensor, crcs: np.ndarray) -> np.ndarray:
        return crcs != self._crcs[indices.numpy()]


def _memory_map(
    file: h5py.File, name: str, row: tuple[str, tuple[Any, ...]], count: int | None = None
) -> tuple[np.ndarray, int]:
    """Return a private map of a dataset's rows, and its first byte in the file. ValueError."""
    dataset: Any = file
    for part in name.split("/"):  # a hostile file may name datasets of others
        is_group = isinstance(dataset, h5py.Group)
        if not is_group or not isinstance(dataset.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{name!r} is not in this file")
        dataset = dataset[part]
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"{name!r} is no data set")  # noqa: TRY004  # as for other damage
    if why := _refusal(dataset.id, os.path.getsize(file.filename)):
        raise ValueError(f"{name!r}: {why}")
    if (dataset.dtype, dataset.shape[1:]) != row or count not in (None, dataset.shape[0]):
        raise ValueError(f"{name} has shape {dataset.shape} and type {dataset.dtype}")
    if dataset.size == 0:
        return np.empty(dataset.shape, dataset.dtype), 0
    offset = dataset.id.get_offset()
    if dataset.chunks is not None or offset is None:
        raise ValueError(f"{name} is not one contiguous block of this file")
    if offset + dataset.nbytes > os.path.getsize(file.filename):
        raise ValueError(f"{name} reaches beyond the end of the file")
    # Mode "c" is copy-on-write: torch gets the writable array that it wants, but a write changes a
    # copy in memory, never the file. Pages that are only read are shared by all processes.
    rows = np.memmap(file.filename, dataset.dtype, "c", offset, dataset.shape)
    return np.asarray(rows), offset  # a plain array, whose indexing is faster


def _row_of(field: Field) -> tuple[str, tuple[int, ...]]:
    # What the values of a field that is not raw consist of: rows, or bytes.
    if field.encoding == "ragged":
        return field.dtype, field.row_shape
    return "uint8", ()


@final
class _ErrorHidingFile(io.FileIO):
    """A file that hides a write error from HDF5, which might crash, until ``check`` raises it."""

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
    """Byte strings, or rows of an array, that wait until their number is known."""

    def __init__(self, folder: Path, dtype: str, row_shape: tuple[int, ...]) -> None:
        # The file has no name, so that a crash leaves nothing behind.
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._lengths = array("q")
        self._dtype, self._row_shape = np.dtype(dtype), row_shape

    def write(self, values: list[Any]) -> None:
        self._file.writelines(values)
        self._lengths.extend(map(len, values))

    def move_into(self, group: Any) -> None:
        """Write all rows to ``data`` of an HDF5 group, and their ``offsets``. Remove the file."""
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


class Dataset(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype  # of texts and bytes: uint8
    kind: str  # ``numbers``, ``rows`` (arrays of different lengths), ``text`` or ``bytes``
    offset: int | None  # the byte of the file where numbers lie one after another


class Listing(NamedTuple):
    datasets: dict[str, Dataset]  # that can be packed, by name: ``group/dataset``
    names: list[str]  # of all groups and data sets
    outside: dict[str, str]  # what is not read, and why: links, virtual data sets, large chunks


def open_hdf5(path: str) -> h5py.File:
    """Open a file for reading, without locks. DataError D101, D102."""
    if not os.path.isfile(path):
        raise missing(path)
    try:
        return h5py.File(path, "r", locking=False, rdcc_nbytes=CACHE_BYTES)
    except PermissionError as error:
        raise unreadable(path, error) from error
    except OSError as error:
        what = "truncated" if "truncated" in str(error) else "not an HDF5 file"
        fix = "download, copy or pack it again; if it has another format, choose the input= for it"
        raise DataError(102, path, f"{what} ({str(error).strip()})", fix) from error


def _refusal(dataset: Any, file_bytes: int) -> str:
    """Return why a data set is not read: it needs other files, or too much memory; "" if it is."""
    created = dataset.get_create_plist()
    if created.get_layout() == h5py.h5d.CHUNKED:
        chunk_bytes = math.prod(created.get_chunk()) * dataset.dtype.itemsize
        if chunk_bytes > foreign.most_bytes(file_bytes):  # they are decompressed as a whole
            return f"has chunks of {chunk_bytes:,} bytes"
    if created.get_layout() == h5py.h5d.VIRTUAL:
        return "a virtual data set"
    if created.get_external_count():
        return "stored in another file"
    filters = range(created.get_nfilters())
    if any(created.get_filter(number)[0] not in BUILT_IN_FILTERS for number in filters):
        return "needs a filter plugin"
    return ""


@final
class ForeignHDF5:
    """The data sets of any HDF5 file. Picklable. DataError D101, D102."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    @cached_property
    def file(self) -> h5py.File:
        return open_hdf5(self.path)

    @cached_property
    def listing(self) -> Listing:
        datasets: dict[str, Dataset] = {}
        names: list[str] = []
        outside: dict[str, str] = {}
        size = os.path.getsize(self.path)

        def visit(name: Any, node: Any) -> None:
            if not isinstance(name, str):  # bytes that are not UTF-8: no command line names them
                return
            names.append(name)
            if isinstance(node, h5py.Dataset):
                with suppress(*H5PY_ERRORS):
                    if why := _refusal(node.id, size):
                        outside[name] = why
                    elif (dataset := _dataset(node.id, size)) is not None:
                        datasets[name] = dataset

        def visit_link(name: bytes, link: Any) -> None:
            if link.type != h5py.h5l.TYPE_HARD:  # pyright: ignore[reportAttributeAccessIssue]  # the stub lacks it
                outside[name.decode(errors="backslashreplace")] = "a link"

        try:
            self.file.visititems(visit)
            self.file.id.links.visit(visit_link, info=True)
        except H5PY_ERRORS as error:
            raise DataError(102, self.path, f"damaged ({words_of(error, 200)})", FIX) from error
        return Listing(datasets, names, outside)

    def read(self, name: str, start: int, stop: int) -> Any:
        """Return values ``start``..``stop`` of a data set: an array, or a list of bytes, arrays."""
        kind = self.listing.datasets[name].kind
        values = self._read(name, slice(start, stop))
        if kind == "bytes":
            return [value.tobytes() for value in values]
        return values if kind == "numbers" else list(values)

    def value(self, name: str) -> Any:
        """Return a whole data set: an array, or the ``bytes`` of a single text or byte string."""
        shape, dtype, kind, offset = self.listing.datasets[name]
        if offset is not None:  # a tenth of the time that h5py takes
            try:
                return np.fromfile(self.path, dtype, math.prod(shape), offset=offset).reshape(shape)
            except (OSError, ValueError) as error:
                raise DataError(102, self.path, f"truncated ({error})", FIX) from error
        value = self._read(name, ())
        if kind == "numbers":
            return np.asarray(value, dtype)
        if shape:
            what = f"dataset {name!r} holds {kind} of the shape {shape}"
            fix = "leave it out, or name it as records along the first axis"
            raise DataError(112, self.path, what, fix)
        return value.tobytes() if kind == "bytes" else value

    def _read(self, name: str, rows: Any) -> Any:
        try:
            dataset: Any = self.file[name]
            start = dataset.id.get_offset()
            is_plain = dataset.id.get_storage_size() == ELEMENT.itemsize * dataset.size
            # Values of any length, but for those in chunks, must not be longer than their file.
            if start is not None and dataset.dtype.kind == "O" and is_plain:
                count = math.prod(dataset.shape)
                elements = np.memmap(self.path, ELEMENT, "r", start, (count,))
                longest = int(elements["length"][rows].max(initial=0))
                if longest > os.path.getsize(self.path):
                    raise ValueError(f"a value of {longest} elements")
            return dataset[rows]
        except H5PY_ERRORS as error:
            what = f"dataset {name!r} cannot be read ({words_of(error, 200)})"
            raise DataError(102, self.path, what, FIX) from error


def _dataset(dataset: Any, file_bytes: int) -> Dataset | None:
    dtype, shape = dataset.dtype, dataset.shape
    base = h5py.check_vlen_dtype(dtype)
    kind, number = "numbers", dtype
    if h5py.check_string_dtype(dtype) is not None:
        kind, number = "text", np.dtype("uint8")
    elif dtype.kind == "V" and dtype.names is None and dtype.subdtype is None:
        kind, number = "bytes", np.dtype("uint8")
    elif base is not None:
        kind, number = "rows", base
    # Numbers of NumPy's that torch has, too: no floats of 80 bits.
    is_number = isinstance(number, np.dtype) and number.kind in "biufc"
    is_long = is_number and number.itemsize > 8 and number.name != "complex128"
    if not is_number or is_long or shape is None or len(shape) > MOST_DIMENSIONS:
        return None
    num_bytes = math.prod((dtype.itemsize, *map(int, shape)))
    offset = dataset.get_offset() if kind == "numbers" else None
    most = MAX_COMPRESSION_RATIO * file_bytes if offset is None else file_bytes - offset
    return Dataset(shape, number, kind, offset) if num_bytes <= most else None


def is_column(dataset: Dataset) -> bool:
    """Return whether a data set can hold a value per record along its first axis."""
    is_column = len(dataset.shape) == 1 or (dataset.kind == "numbers" and bool(dataset.shape))
    return is_column and all(dataset.shape)


def hdf5_advice(path: str) -> str:
    """Say how to pack another program's file: by a command, or by ``input=function``."""
    fields: dict[str, str] = {}
    with suppress(DataError):
        fields = suggested_fields(ForeignHDF5(path))
    if not fields:
        return foreign.OTHER_WAY
    words = ("input=hdf5", f"input.path={path}", foreign.fields_word(fields))
    return foreign.pack_command(path, *words)


def suggested_fields(file: ForeignHDF5) -> dict[str, str]:
    """Return a data set for each field: those of the most frequent length. DataError D192."""
    datasets = {
        name: data for name, data in file.listing.datasets.items() if foreign.is_quotable(name)
    }
    groups = {name.partition("/")[0] for name in datasets if "/" in name}
    splits = [group for group in groups if group.lower() in foreign.USUAL_SPLITS]
    if len(splits) > 1:

        def word(split: str) -> str:
            own = [name for name in datasets if name.startswith(f"{split}/")]
            return foreign.fields_word({name.rpartition("/")[2]: name for name in own})

        raise foreign.several_splits(file.path, splits, word)
    if len(datasets) > foreign.MOST_FIELDS:
        ((depth, _),) = Counter(name.count("/") for name in datasets).most_common(1)
        stars = "*/" * depth
        lasts = [name.rpartition("/")[2] for name in datasets if name.count("/") == depth]
        if depth and len(set(lasts)) <= foreign.MOST_FIELDS:
            return {foreign.field_name(last, {}): stars + last for last in dict.fromkeys(lasts)}
        return {"value": f"{stars}*"}
    lengths = {name: data.shape[0] for name, data in datasets.items() if is_column(data)}
    counts = Counter(lengths.values())
    length = max(counts, key=lambda length: (counts[length], length), default=0)
    fields: dict[str, str] = {}
    for name, own_length in lengths.items():
        if own_length == length:
            fields[foreign.field_name(name.rpartition("/")[2], fields)] = name
    return fields
