"""The data sets of any HDF5 file, and the command that packs it.

Nothing outside of the file is read, and no plugin is run, whatever the file asks for.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, final

import h5py
import numpy as np

from framework.errors import DataError, words_of
from framework.media.header import is_image
from framework.store.expansion import most_bytes
from framework.store.foreign import (
    LAST_NUMBER,
    MOST_FIELDS,
    OTHER_WAY,
    USUAL_SPLITS,
    example_split,
    field_name,
    fields_word,
    is_quotable,
    pack_command,
    several_splits,
)
from framework.store.identity import check_exists

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
    """A data set of a kind that can be packed.

    Attributes:
        shape: Of all its values. A scalar has the shape ().
        dtype: Of a number; uint8 for texts and bytes.
        kind: ``numbers``; ``rows``: values are arrays of different lengths; ``text``; ``bytes``.
        offset: The byte of the file where the numbers lie one after another, or None.
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
        what = "cannot be read: Permission denied"
        raise DataError(101, path, what, "give read permission") from error
    except OSError as error:
        what = "not an HDF5 file"
        fix = "pack it again; if it has another format, choose the input= that packs it"
        if "truncated" in str(error):
            what = "truncated"
            fix = "download, copy or pack it again"
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

    Raises:
        DataError: D101 if the file is missing; D102 if it cannot be read.
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

    @cached_property
    def nodes(self) -> dict[str, Dataset | None]:
        """All groups and data sets by name; None for those that cannot be packed."""
        return self._listing[0]

    @property
    def outside(self) -> dict[str, str]:
        """What is not read, and why, by name: links, virtual data sets, very large chunks."""
        return self._listing[1]

    @cached_property
    def _listing(self) -> tuple[dict[str, Dataset | None], dict[str, str]]:
        try:
            return _nodes(self.path, self.file)
        except H5PY_ERRORS as error:
            what = f"damaged ({words_of(error, 200)})"
            raise DataError(102, self.path, what, FIX) from error

    def read(self, name: str, start: int, stop: int) -> Any:
        """Return values ``start``..``stop`` of a data set, by one read.

        These are an array of numbers, or a list of ``bytes`` (texts, too) or of arrays.
        """
        dataset = self.datasets[name]
        values = self._read(name, slice(start, stop))
        if dataset.kind == "numbers":
            return values
        if dataset.kind == "bytes":
            return [value.tobytes() for value in values]
        return list(values)

    def value(self, name: str) -> Any:
        """Return a whole data set: an array, or the ``bytes`` of a single text or byte string."""
        dataset = self.datasets[name]
        if dataset.offset is not None:  # a tenth of the time that h5py takes
            return self._read_numbers(dataset, dataset.offset)
        value = self._read(name, ())
        if dataset.kind == "numbers":
            return np.asarray(value, dataset.dtype)
        if dataset.shape:
            what = f"dataset {name!r} holds {dataset.kind} of the shape {dataset.shape}"
            fix = "leave it out, or name it as records along the first axis"
            raise DataError(112, self.path, what, fix)
        return value.tobytes() if dataset.kind == "bytes" else value

    def first(self, name: str) -> Any:
        """Return the first value of a data set of texts or byte strings, b"" if there is none."""
        dataset = self.datasets[name]
        if not dataset.shape:
            return self.value(name)
        return self.read(name, 0, 1)[0] if len(dataset.shape) == 1 and dataset.shape[0] else b""

    def _read_numbers(self, dataset: Dataset, offset: int) -> np.ndarray:
        count = math.prod(dataset.shape)
        try:
            flat = np.fromfile(self.path, dataset.dtype, count, offset=offset)
            return flat.reshape(dataset.shape)
        except (OSError, ValueError) as error:
            raise DataError(102, self.path, f"truncated ({error})", FIX) from error

    def _read(self, name: str, rows: Any) -> Any:
        file: Any = self.file
        try:
            _check_lengths(file[name], self.path, rows)
            return file[name][rows]
        except H5PY_ERRORS as error:
            what = f"dataset {name!r} cannot be read ({words_of(error, 200)})"
            raise DataError(102, self.path, what, FIX) from error

    def attribute(self, name: str, key: str) -> Any:
        """Return an attribute of a group or data set: ``str`` or an array. DataError D102, D112."""
        value = self._raw_attribute(name, key)
        if isinstance(value, bytes):
            return value.decode(errors="surrogateescape")
        return value if isinstance(value, str) else np.asarray(value)

    def _raw_attribute(self, name: str, key: str) -> Any:
        """Return an attribute as h5py reads it.

        h5py allocates what the file declares, so that is compared with the file first.
        """
        try:
            attributes = self.file[name].attrs
            if key not in attributes:
                what = f"{name!r} has no attribute {key!r}, but {', '.join(attributes) or 'none'}"
                raise DataError(112, self.path, what, "correct input.fields")
            size = attributes.get_id(key).get_storage_size()
            if size > os.path.getsize(self.path):
                raise ValueError(f"an attribute of {size} bytes")
            return attributes[key]
        except H5PY_ERRORS as error:
            what = f"attribute {key!r} of {name!r} cannot be read ({words_of(error, 200)})"
            raise DataError(102, self.path, what, FIX) from error


def _check_lengths(dataset: Any, path: str, rows: Any) -> None:
    """Raise ValueError if a value of any length is longer than its file.

    Data sets in chunks are not checked.
    """
    start = dataset.id.get_offset()
    is_plain = dataset.id.get_storage_size() == ELEMENT.itemsize * dataset.size
    if start is None or dataset.dtype.kind != "O" or not is_plain:
        return
    elements = np.memmap(path, ELEMENT, "r", start, (math.prod(dataset.shape),))
    longest = int(elements["length"][rows].max(initial=0))
    if longest > os.path.getsize(path):
        raise ValueError(f"a value of {longest} elements")


def _nodes(path: str, file: h5py.File) -> tuple[dict[str, Dataset | None], dict[str, str]]:
    """Return what a visit by hard links reaches, each node once, and what is not read, and why."""
    nodes: dict[str, Dataset | None] = {}
    outside: dict[str, str] = {}
    size = os.path.getsize(path)

    def visit(name: Any, node: Any) -> None:
        if not isinstance(name, str):  # bytes that are not UTF-8, which no command line could name
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

    file.visititems(visit)
    file.id.links.visit(visit_link, info=True)
    return nodes, outside


def _dataset(dataset: Any, file_bytes: int) -> Dataset | None:
    dtype, shape = dataset.dtype, dataset.shape
    kind, number = _kind(dtype)
    if not kind or shape is None or len(shape) > MOST_DIMENSIONS:
        return None
    num_bytes = int(np.prod([dtype.itemsize, *shape], dtype=object))
    offset = dataset.get_offset() if kind == "numbers" else None
    last = MAX_COMPRESSION_RATIO * file_bytes
    if offset is not None:
        last = file_bytes - offset
    return Dataset(shape, number, kind, offset) if num_bytes <= last else None


def _kind(dtype: np.dtype) -> tuple[str, np.dtype]:
    """Return the kind of a data set, "" if it cannot be packed, and the type of a number."""
    base = h5py.check_vlen_dtype(dtype)
    if h5py.check_string_dtype(dtype) is not None:
        return "text", np.dtype("uint8")
    if dtype.kind == "V" and dtype.names is None and dtype.subdtype is None:
        return "bytes", np.dtype("uint8")
    if base is not None:
        return "rows" if _is_plain(base) else "", base
    return "numbers" if _is_plain(dtype) else "", dtype


def _is_plain(dtype: Any) -> bool:
    """Return whether a type is a number of NumPy's that torch has, too: no float of 80 bits."""
    is_number = isinstance(dtype, np.dtype) and dtype.kind in "biufc"
    return is_number and (dtype.itemsize <= 8 or dtype.name == "complex128")


def hdf5_advice(path: str) -> str:
    """Suggest how to pack another program's HDF5 file: by a command, or by ``input=function``."""
    try:
        datasets = _usable(ForeignHDF5(path))
    except DataError:
        return OTHER_WAY
    if splits := _splits(datasets):
        command = pack_command("hdf5", path, _fields_of_split(datasets, splits))
        return f"choose one of its splits ({', '.join(splits)}), and {command}"
    fields = _fields_of(datasets)
    return pack_command("hdf5", path, fields) if fields else OTHER_WAY


def suggested_fields(file: ForeignHDF5) -> dict[str, str]:
    """Return a data set, or a pattern of the records' data sets, for each field.

    Many data sets, or several in groups that all have lengths of their own, are records. Of a few
    the records have the length that most of them share.

    Raises:
        DataError: D192 if the file has a group per split.
    """
    datasets = _usable(file)
    if splits := _splits(datasets):
        word = fields_word(_fields_of_split(datasets, splits))
        raise several_splits(file.path, splits, word)
    return _fields_of(datasets)


def _splits(datasets: Iterable[str]) -> list[str]:
    """Return the groups at the top that are splits by their names, if they are several."""
    groups = {name.partition("/")[0] for name in datasets if "/" in name}
    splits = sorted(group for group in groups if group.lower() in USUAL_SPLITS)
    return splits if len(splits) > 1 else []


def _fields_of_split(datasets: Mapping[str, Dataset], splits: Sequence[str]) -> dict[str, str]:
    """Return what ``suggested_fields`` describes, for one of several splits."""
    split = example_split(splits)
    fields = _fields_of(_in_groups(datasets, splits))
    if not all(path.startswith("*/") for path in fields.values()):
        fields = _fields_of(_in_groups(datasets, [split]))
    fields = fields or {"value": "*/*"}
    return {field: f"{split}/{path.partition('/')[2]}" for field, path in fields.items()}


def _in_groups(datasets: Mapping[str, Dataset], groups: Sequence[str]) -> dict[str, Dataset]:
    return {name: data for name, data in datasets.items() if name.partition("/")[0] in groups}


def _fields_of(datasets: Mapping[str, Dataset]) -> dict[str, str]:
    lengths = {name: data.shape[0] for name, data in datasets.items() if is_column(data)}
    counts = Counter(lengths.values())
    in_groups = sum("/" in name for name in lengths) > 2
    if len(datasets) > MOST_FIELDS or (in_groups and max(counts.values()) == 1):
        return _suggested_patterns(datasets)
    if not counts:
        return {}
    length = max(counts, key=lambda length: (counts[length], length))
    return _named_by_last(name for name, own_length in lengths.items() if own_length == length)


def _usable(file: ForeignHDF5) -> dict[str, Dataset]:
    """Return the data sets that a command can name. Byte strings must be image files."""
    datasets = {name: data for name, data in file.datasets.items() if is_quotable(name)}
    strings = [name for name, data in datasets.items() if data.kind == "bytes"]
    if strings and not is_image(file.first(strings[0])):
        return {name: data for name, data in datasets.items() if data.kind != "bytes"}
    return datasets


def is_column(dataset: Dataset) -> bool:
    """Return whether a data set can hold a value per record along its first axis."""
    if dataset.kind != "numbers" and len(dataset.shape) != 1:
        return False
    return bool(dataset.shape) and all(dataset.shape)


def _suggested_patterns(datasets: Mapping[str, Dataset]) -> dict[str, str]:
    """Return a pattern for each name that the data sets of all records share.

    Without such names each data set is a record.
    """
    depths = Counter(name.count("/") for name in datasets)
    depth = max(depths, key=lambda depth: depths[depth])
    records: dict[str, set[str]] = {}  # groups by the last part of the name
    for name in (name for name in datasets if name.count("/") == depth):
        group, _, last = name.rpartition("/")
        records.setdefault(last, set()).add(group)
    most = max(map(len, records.values()))
    shared = [last for last, groups in records.items() if len(groups) == most]
    is_named = len(shared) <= MOST_FIELDS and not any(map(LAST_NUMBER.fullmatch, shared))
    if not depth or most == 1 or not is_named:
        return {"value": "/".join(["*"] * (depth + 1))}
    return _named_by_last("/".join([*["*"] * depth, last]) for last in filter(is_quotable, shared))


def _named_by_last(paths: Iterable[str]) -> dict[str, str]:
    """Return a field for each data set or pattern, named by the last part of its path."""
    fields: dict[str, str] = {}
    for path in paths:
        fields[field_name(path.rpartition("/")[2], fields)] = path
    return fields
