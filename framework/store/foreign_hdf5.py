"""The data sets of any HDF5 file, and the command that packs it.

Nothing outside of the file is read, and no plugin is run, whatever the file asks for.
"""

import math
import os
from collections import Counter
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, final

import h5py
import numpy as np

from framework.errors import DataError, words_of
from framework.store import foreign
from framework.store.files import check_exists, unreadable
from framework.store.values import most_bytes

# Deflate shrinks data at most 1032 times. A file that declares more is damaged or made to harm.
MAX_COMPRESSION_RATIO = 1100
BUILT_IN_FILTERS = {1, 2, 3, 32000}  # deflate, shuffle, fletcher32 and lzf; others are plugins
# What h5py raises for a damaged file.
H5PY_ERRORS = (
    *(KeyError, ValueError, TypeError, RuntimeError, OSError, NotImplementedError),
    *(MemoryError, IndexError),
)
FIX = "download or copy the file again"
# Packing reads a few records at a time, which must not decompress their chunk each time.
CACHE_BYTES = 64 << 20
# Of a value of any length in its data set: its length, and where its bytes are. HDF5 allocates
# what the length says.
ELEMENT = np.dtype([("length", "<u4"), ("place", "V12")])
MOST_DIMENSIONS = 32  # of an array of torch's or NumPy's that a store can hold

# HDF5 runs code from these folders if a file names a plugin as its filter. Remove all of them.
while h5py.h5pl.size():
    h5py.h5pl.remove(0)


class Dataset(NamedTuple):
    """A data set of a kind that can be packed: ``numbers``, ``rows`` (arrays of different
    lengths), ``text`` or ``bytes``. A scalar has the shape (). Texts and bytes are uint8.
    ``offset`` is the byte of the file where numbers lie one after another, or None.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    kind: str
    offset: int | None


def open_hdf5(path: str) -> h5py.File:
    """Open a file for reading, without locks. DataError D101, D102."""
    check_exists(path)
    try:
        return h5py.File(path, "r", locking=False, rdcc_nbytes=CACHE_BYTES)
    except PermissionError as error:
        raise unreadable(path, error) from error
    except OSError as error:
        what = "truncated" if "truncated" in str(error) else "not an HDF5 file"
        fix = "download, copy or pack it again; if it has another format, choose the input= for it"
        raise DataError(102, path, f"{what} ({str(error).strip()})", fix) from error


def own_dataset(file: h5py.File, path: str) -> Any:
    """Return a dataset that is stored entirely in this file.

    A hostile file could otherwise make us read other files through links or external storage.
    """
    node: Any = file
    for part in path.split("/"):
        is_group = isinstance(node, h5py.Group)
        if not is_group or not isinstance(node.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{path!r} is not in this file")
        node = node[part]
    if not isinstance(node, h5py.Dataset):
        raise ValueError(f"{path!r} is no data set")  # noqa: TRY004  # as for other damage
    if why := _refusal(node.id, os.path.getsize(file.filename)):
        raise ValueError(f"{path!r}: {why}")
    return node


def _refusal(dataset: Any, file_bytes: int) -> str:
    """Return why a data set is not read: it needs other files, or too much memory; "" if it is."""
    created = dataset.get_create_plist()
    if created.get_layout() == h5py.h5d.CHUNKED:
        chunk_bytes = math.prod(created.get_chunk()) * dataset.dtype.itemsize
        if chunk_bytes > most_bytes(file_bytes):  # they are decompressed as a whole
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
    """The data sets of any HDF5 file. Picklable; each process opens the file itself.

    DataError D101 if the file is missing, D102 if it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    @cached_property
    def file(self) -> h5py.File:
        return open_hdf5(self.path)

    @cached_property
    def datasets(self) -> dict[str, Dataset]:
        """The data sets that can be packed, by name: ``group/dataset``."""
        return {name: dataset for name, dataset in self.nodes.items() if dataset is not None}

    @property
    def nodes(self) -> dict[str, Dataset | None]:
        """All groups and data sets by name; None for those that cannot be packed."""
        return self._listing[0]

    @property
    def outside(self) -> dict[str, str]:
        """What is not read, and why, by name: links, virtual data sets, very large chunks."""
        return self._listing[1]

    @cached_property
    def _listing(self) -> tuple[dict[str, Dataset | None], dict[str, str]]:
        nodes: dict[str, Dataset | None] = {}
        outside: dict[str, str] = {}
        size = os.path.getsize(self.path)

        def visit(name: Any, node: Any) -> None:
            if not isinstance(name, str):  # bytes that are not UTF-8: no command line names them
                return
            nodes[name] = None
            if isinstance(node, h5py.Dataset):
                with suppress(*H5PY_ERRORS):
                    if why := _refusal(node.id, size):
                        outside[name] = why
                    else:
                        nodes[name] = _dataset(node.id, size)

        def visit_link(name: bytes, link: Any) -> None:
            if link.type != h5py.h5l.TYPE_HARD:  # pyright: ignore[reportAttributeAccessIssue]  # the stub lacks it
                outside[name.decode(errors="backslashreplace")] = "a link"

        try:
            self.file.visititems(visit)
            self.file.id.links.visit(visit_link, info=True)
        except H5PY_ERRORS as error:
            raise DataError(102, self.path, f"damaged ({words_of(error, 200)})", FIX) from error
        return nodes, outside

    def read(self, name: str, start: int, stop: int) -> Any:
        """Return values ``start``..``stop`` of a data set: an array, or a list of bytes, arrays."""
        kind = self.datasets[name].kind
        values = self._read(name, slice(start, stop))
        if kind == "bytes":
            return [value.tobytes() for value in values]
        return values if kind == "numbers" else list(values)

    def value(self, name: str) -> Any:
        """Return a whole data set: an array, or the ``bytes`` of a single text or byte string."""
        shape, dtype, kind, offset = self.datasets[name]
        if offset is not None:  # a tenth of the time that h5py takes
            try:
                flat = np.fromfile(self.path, dtype, math.prod(shape), offset=offset)
                return flat.reshape(shape)
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
    """Return what a data set holds, None if that cannot be packed."""
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
    if not is_number or (number.itemsize > 8 and number.name != "complex128"):
        return None
    if shape is None or len(shape) > MOST_DIMENSIONS:
        return None
    num_bytes = math.prod((dtype.itemsize, *map(int, shape)))
    offset = dataset.get_offset() if kind == "numbers" else None
    most = MAX_COMPRESSION_RATIO * file_bytes if offset is None else file_bytes - offset
    return Dataset(shape, number, kind, offset) if num_bytes <= most else None


def is_column(dataset: Dataset) -> bool:
    """Return whether a data set can hold a value per record along its first axis."""
    if dataset.kind != "numbers" and len(dataset.shape) != 1:
        return False
    return bool(dataset.shape) and all(dataset.shape)


def hdf5_advice(path: str) -> str:
    """Suggest how to pack another program's HDF5 file: by a command, or by ``input=function``."""
    fields: dict[str, str] = {}
    with suppress(DataError):
        fields = suggested_fields(ForeignHDF5(path))
    if not fields:
        return foreign.OTHER_WAY
    words = ("input=hdf5", f"input.path={path}", foreign.fields_word(fields))
    return foreign.pack_command(path, *words)


def suggested_fields(file: ForeignHDF5) -> dict[str, str]:
    """Return a data set for each field: those of the length that most data sets share.

    More than ``MOST_FIELDS`` data sets are one per record, or one per record and field. DataError
    D192 for a group per split.
    """
    datasets = {name: data for name, data in file.datasets.items() if foreign.is_quotable(name)}
    groups = {name.partition("/")[0] for name in datasets if "/" in name}
    splits = sorted(group for group in groups if group.lower() in foreign.USUAL_SPLITS)
    if len(splits) > 1:
        first = f"{foreign.example_split(splits)}/"
        names = {name.rpartition("/")[2]: name for name in datasets if name.startswith(first)}
        raise foreign.several_splits(file.path, splits, foreign.fields_word(names))
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
