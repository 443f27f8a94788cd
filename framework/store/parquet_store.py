"""Parquet files and Hugging Face datasets as a store, through pyarrow (extra ``parquet``).

Parquet keeps rows in groups, and a group can only be decoded whole: some 100 images, or 100,000
rows of numbers. The newest groups are kept decoded, up to ``cache_mb`` in each process. In random
order over more data than that, nearly every record decodes a group: with 100 images of 100 kB, that
is 10 MB for one record. In ``order=block`` each group is decoded about once per epoch, and a packed
store needs no groups at all. The record batches of Arrow files, which ``datasets.save_to_disk``
writes, are not compressed: they are mapped, and read at any place.
"""

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Manifest, Records
from framework.errors import ConfigError, DataError, listed, words_of
from framework.image.decode import BadImage, num_channels
from framework.store.array_values import DTYPES
from framework.store.file_format import COLUMNS, refuse_other
from framework.store.identity import Identity, identify, unreadable
from framework.store.label import (
    MOST_CLASSES,
    check_classes,
    label_column,
    numbered_classes,
)
from framework.store.walk_tree import named_files
from framework.system.extras import needed

LABEL = "label"
STATE = "state.json"  # of a folder that ``save_to_disk`` wrote: the names of its files
SPLITS = "dataset_dict.json"  # of a folder with a folder per split
NUMBERED = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$")  # behind the split, in names of the Hub
USUAL_SPLITS = ("train", "validation", "valid", "val", "dev", "test")
MOST_GROUP_BYTES = 4 << 30  # decoded; a hostile file may declare any number
MOST_JSON_BYTES = 1 << 24
SCAN_ROWS = 1 << 16
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"  # of Arrow's stream format


class FieldColumn(NamedTuple):
    """A field's column. ``kind``: ``image``, ``file`` (bytes and path), ``array`` or ``name``."""

    name: str
    kind: str


class _Values(NamedTuple):
    """A field of a group: buffers that are taken by row, or an array [rows, *shape]."""

    values: Any
    nulls: np.ndarray | None  # bool [rows]; None: there is none


class _Group(NamedTuple):
    values: dict[str, _Values]  # by field
    num_bytes: int


@final
class ParquetStore:
    """A RecordStore over Parquet or Arrow files with the same columns.

    An image is a column of bytes, or of ``{bytes, path}`` as Hugging Face stores it. Numbers and
    lists of one length become raw fields. The column of the field ``label`` may be text; the names
    of a ``ClassLabel`` are the classes. Parquet's page checksums are compared if they were written.
    There are no others, so ``damaged`` never lists any.

    Args:
        path: A file, a folder of files of one split, or a pattern.
        fields: The column of each field; None: all columns.
        classes: All classes in the order of their numbers; None: those of the file.
        labels: The fields that are label maps.
        cache_mb: How much of decoded groups each process keeps, in 10**6 bytes.
        group: Where these options stand, for errors: ``data`` or ``input``.

    Raises:
        ConfigError: C161, C162 or C179 for options that do not fit.
        DataError: D101 if there is no file; D102 for a damaged one; D103 for another format; D109
            if there is no row; D167 for a column that a store cannot hold; D169 if the columns of
            the files differ; D192 if a folder holds several splits.
        ResourceError: R112 if pyarrow is not installed.
    """

    def __init__(
        self,
        path: str,
        fields: Mapping[str, str] | None = None,
        classes: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        cache_mb: int = 512,
        group: str = "data",
    ) -> None:
        refuse_other(path, "parquet")
        needed("pyarrow", "parquet")
        self.path = path
        self.given = fields
        self.classes = classes
        self.label_maps = tuple(labels or ())
        self.cache_mb = cache_mb
        self.group = group
        self.is_random = False  # whether records are asked for in random order
        self._files = _Files(_column_files(path), cache_mb)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": self._files.closed()}

    @cached_property
    def manifest(self) -> Manifest:
        self._files.check_columns()
        fields = {name: self._field(name) for name in self._columns}
        for name in self.label_maps:
            if name not in fields or fields[name].kind != "labels":
                where = f"{self.group}.labels = {list(self.label_maps)}"
                fix = f"the fields are {', '.join(fields)}"
                raise ConfigError(179, where, f"{name} is not a field of images", fix)
        counts = self._counts
        present = [number for number in counts if 0 <= number < len(self._class_names)]
        class_counts = [0] * len(self._class_names)
        for number in present:
            class_counts[number] = counts[number]
        if len(present) < len(counts):
            class_counts = []
        source = f"parquet {self.path}"
        return Manifest(len(self), fields, self._class_names, class_counts, source=source)

    def __len__(self) -> int:
        return int(self._files.firsts[-1])

    @cached_property
    def _columns(self) -> dict[str, FieldColumn]:
        """The column of each field. ConfigError C162, DataError D167."""
        schema = self._files.schema
        given = self.given
        if given is None:
            given = {name: name for name in schema.names}
        if not isinstance(given, Mapping) or not given:
            fix = f"give {self.group}.fields={{image: image, label: label}}"
            raise ConfigError(
                162, f"{self.group}.fields = {given}", "must map fields to texts", fix
            )
        columns: dict[str, FieldColumn] = {}
        for field, name in given.items():
            if schema.names.count(name) != 1:
                what = f"there are {schema.names.count(name)} columns of this name"
                fix = f"choose from {listed(schema.names)}"
                raise ConfigError(162, f"{self.group}.fields.{field} = {name}", what, fix)
            kind = _kind_of(schema.field(name).type, str(field) == LABEL)
            if kind is None:
                what = f"the column {name} is {schema.field(name).type}, which a store cannot hold"
                raise DataError(167, self.path, what, f"choose others: {self._advice}")
            columns[str(field)] = FieldColumn(name, kind)
        return columns

    @property
    def _advice(self) -> str:
        """How to choose the columns that a store can hold."""
        schema = self._files.schema
        names = [name for name in schema.names if _kind_of(schema.field(name).type, name == LABEL)]
        chosen = ", ".join(f"{name}: {name}" for name in names[:4]) or "image: image"
        return f"'{self.group}.fields={{{chosen}}}'"

    @cached_property
    def _tally(self) -> dict[Any, int]:
        """How often each value of the label's column occurs; {} if there is no such column."""
        column = self._columns.get(LABEL)
        if column is None or column.kind not in ("array", "name"):
            return {}
        kind = self._files.schema.field(column.name).type
        if column.kind == "array" and not _library().types.is_integer(kind):
            return {}
        return self._files.tally(column.name)

    @cached_property
    def _numbers(self) -> dict[str, int] | None:
        """The number of each name of a class; None if labels are numbers."""
        if LABEL not in self._columns or self._columns[LABEL].kind != "name":
            return None
        names = sorted(map(str, self._tally), key=os.fsencode)
        if not names:
            return {}
        where = f"{self.path}: column {self._columns[LABEL].name}"
        numbers, _ = label_column(names, self.classes, self.path, lambda _: where, self.group)
        return dict(zip(names, numbers, strict=True))

    @property
    def _counts(self) -> dict[int, int]:
        """How often each label occurs."""
        numbers = self._numbers
        if numbers is None:
            return self._tally
        return {numbers[name]: count for name, count in self._tally.items()}

    @cached_property
    def _class_names(self) -> list[str]:
        """The classes in the order of their numbers."""
        column = self._columns.get(LABEL)
        if column is None or not self._tally:
            return check_classes((), self.classes, self.path, self.group)
        if self._numbers is not None:
            names, where = list(self._numbers), f"{self.path}: column {column.name}"
            return label_column(names, self.classes, self.path, lambda _: where, self.group)[1]
        classes = self.classes
        if classes is None:
            classes = _names_of_classes(self._files.schema, column.name)
        largest = max(self._tally)
        if min(self._tally) < 0 and classes is None:
            return []
        return numbered_classes(largest, classes, self.path, self.group)

    def _field(self, name: str) -> Field:
        """Return a field as the first row has it."""
        column = self._columns[name]
        values = self._value(name, 0)
        if column.kind in ("array", "name"):
            if values.dtype.name not in DTYPES:
                what = f"the column {column.name} is {values.dtype}, which a store cannot hold"
                raise DataError(167, self.path, what, f"choose others: {self._advice}")
            return Field(values.dtype.name, values.shape[1:])
        if name in self.label_maps:
            return Field("uint8", (1, None, None), "image", "labels")
        try:
            return Field("uint8", (num_channels(values[0]), None, None), "image")
        except (BadImage, ValueError) as error:
            what = f"not a readable image ({error})"
            fix = f"correct or remove it, or choose columns: {self._advice}"
            raise DataError(106, f"{self.name(0)}: {column.name}", what, fix) from error

    def _value(self, name: str, index: int) -> Any:
        group, row = self._files.place(index)
        rows = np.array([row])
        return self._taken(name, self._group(group).values[name], rows, np.array([index]))

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what random order costs, if the groups do not fit the cache."""
        total = self._files.num_bytes(self._columns.values())
        if not self.is_random or total <= self.cache_mb * 10**6:
            return ()
        num_groups = max(1, len(self._files.firsts) - 1)
        rows, mean_mb = -(-len(self) // num_groups), total / num_groups / 1e6
        note = (
            f"{self.path}: in random order nearly every record decodes a group of {rows} rows "
            f"({mean_mb:.0f} MB) again, since {total / 1e6:,.0f} MB do not fit data.cache_mb="
            f"{self.cache_mb}; add order=block order.block_records={rows}, or pack it with "
            "'paceline pack input=parquet'"
        )
        return (note,)

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        places = indices.numpy()
        count = len(self)
        if len(places) and not 0 <= places.min() <= places.max() < count:
            raise IndexError(f"rows {places.min()}..{places.max()} of {count}")
        groups = np.searchsorted(self._files.firsts, places, side="right") - 1
        records: Records = {}
        for name, field in self.manifest.fields.items():
            if field.encoding == "image":
                records[name] = [None] * len(places)
            else:
                records[name] = np.empty((len(places), *field.shape), field.dtype)
        for group in np.unique(groups).tolist():
            chosen = np.flatnonzero(groups == group)
            rows = places[chosen] - self._files.firsts[group]
            for name, values in self._group(group).values.items():
                taken = self._taken(name, values, rows, places[chosen])
                self._check(name, taken, places[chosen])
                if isinstance(taken, list):
                    for place, value in zip(chosen.tolist(), taken, strict=True):
                        records[name][place] = value
                else:
                    records[name][chosen] = taken
        return {
            name: torch.from_numpy(values) if isinstance(values, np.ndarray) else values
            for name, values in records.items()
        }

    def _check(self, name: str, values: Any, indices: np.ndarray) -> None:
        """Raise DataError D167 for arrays of another shape or dtype than the first row's."""
        field = self.manifest.fields[name]
        if isinstance(values, list):
            return
        if values.shape[1:] != tuple(field.shape) or values.dtype.name != field.dtype:
            what = f"is {values.dtype} {values.shape[1:]}, but the first row has "
            what += f"{field.dtype} {tuple(field.shape)}"
            fix = f"give all rows one shape, or choose columns: {self._advice}"
            raise DataError(167, f"{self.name(int(indices[0]))}: {name}", what, fix)

    def _taken(self, name: str, values: _Values, rows: np.ndarray, indices: np.ndarray) -> Any:
        """Return some rows of a group's field. DataError D162 for a null."""
        if values.nulls is not None and values.nulls[rows].any():
            index = int(indices[values.nulls[rows].argmax()])
            what = "has no value"
            if self._columns[name].kind == "file":
                what = "has no bytes; its image lies in a file of its own"
            fix = f"fill it in or leave the row out, or choose columns: {self._advice}"
            where = f"{self.name(index)}: {self._columns[name].name}"
            raise DataError(162, where, what, fix)
        if isinstance(values.values, np.ndarray):
            return values.values[rows]
        return [memoryview(values.values[row].as_buffer()).cast("B") for row in rows.tolist()]

    def _group(self, number: int) -> _Group:
        return self._files.group(number, self._columns, self._numbers)

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return []  # checksums of pages are compared while they are decoded

    def key(self, index: int) -> str:
        file, row = self._files.row(index)
        return f"{os.path.basename(file)}:{row}"

    def name(self, index: int) -> str:
        file, row = self._files.row(index)
        return f"{file}: row {row}"

    def file_of(self, index: int) -> str:
        """Return the path of the file that holds a row."""
        return self._files.row(index)[0]

    def check(self) -> None:
        self._files.check()

    def close(self) -> None:
        self._files = self._files.closed()


class _Reader(Protocol):
    """One opened file. ``rows``: the number of rows of each group."""

    schema: Any
    rows: list[int]

    def num_bytes(self, group: int, columns: Collection[str]) -> int:
        """Return the bytes of decoded columns of a group; 0 if they are mapped."""
        ...

    def read(self, group: int, columns: list[str]) -> Any:
        """Return a table of the columns of a group, with offsets that are checked."""
        ...

    def batches(self, column: str) -> Iterator[Any]:
        """Yield a column in pieces."""
        ...


@final
class _ParquetFile:
    def __init__(self, path: str) -> None:
        self.path = path
        with self._open() as file:
            self.metadata = file.metadata
            self.schema = file.schema_arrow
        groups = range(self.metadata.num_row_groups)
        self.rows = [self.metadata.row_group(group).num_rows for group in groups]
        if sum(self.rows) != self.metadata.num_rows or min(self.rows, default=0) < 0:
            raise ValueError(f"its groups hold {sum(self.rows)} of {self.metadata.num_rows} rows")

    def _open(self, metadata: Any = None) -> Any:
        return _library().parquet.ParquetFile(
            self.path, metadata=metadata, page_checksum_verification=True
        )

    def num_bytes(self, group: int, columns: Collection[str]) -> int:
        about = self.metadata.row_group(group)
        parts = (about.column(number) for number in range(about.num_columns))
        chosen = (p for p in parts if p.path_in_schema.partition(".")[0] in columns)
        return sum(part.total_uncompressed_size for part in chosen)

    def read(self, group: int, columns: list[str]) -> Any:
        with self._open(self.metadata) as file:
            # One thread: the reader's own threads read other groups meanwhile.
            table = file.read_row_group(group, columns=columns, use_threads=False)
        table.validate(full=True)
        return table

    def batches(self, column: str) -> Iterator[Any]:
        with self._open(self.metadata) as file:
            for batch in file.iter_batches(SCAN_ROWS, columns=[column], use_threads=False):
                yield batch.column(0)


@final
class _ArrowFile:
    def __init__(self, path: str) -> None:
        arrow = _library().arrow
        source = arrow.memory_map(path)
        try:
            reader = arrow.ipc.open_file(source)
            self._batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
        except arrow.ArrowInvalid:
            source.seek(0)
            reader = arrow.ipc.open_stream(source)
            self._batches = list(reader)
            # Without the mark, arrow takes the end of a truncated file for the end of the stream.
            is_whole = source.tell() == source.size()
            source.seek(max(0, source.size() - len(STREAM_END)))
            if not is_whole or source.read(len(STREAM_END)) != STREAM_END:
                raise ValueError("truncated: it does not end with its end mark") from None
        self.schema = reader.schema
        self.rows = [batch.num_rows for batch in self._batches]

    def num_bytes(self, group: int, columns: Collection[str]) -> int:
        return 0

    def read(self, group: int, columns: list[str]) -> Any:
        batch = self._batches[group].select(columns)
        batch.validate(full=True)
        return _library().arrow.Table.from_batches([batch])

    def batches(self, column: str) -> Iterator[Any]:
        for batch in self._batches:
            part = batch.select([column])
            part.validate(full=True)
            yield part.column(0)


@final
class _Files:
    """Files that are opened when they are needed, and the decoded groups of all of them."""

    def __init__(self, paths: Sequence[str], cache_mb: int) -> None:
        self.paths = list(paths)
        self.cache_mb = cache_mb
        self.identities: dict[str, Identity] = {}
        self._begin()

    def _begin(self) -> None:
        self._readers: list[_Reader] | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._groups: OrderedDict[int, Future[_Group]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.paths, self.cache_mb, self.identities)

    def closed(self) -> "_Files":
        """Return the same files with nothing opened."""
        return _restored(self.paths, self.cache_mb, self.identities)

    @property
    def readers(self) -> list[_Reader]:
        if self._process != os.getpid():  # a lock may be held by a thread of the parent
            self._begin()
        if self._readers is None:
            self._readers = [self._opened(path) for path in self.paths]
        return self._readers

    def _opened(self, path: str) -> _Reader:
        identity = identify(path, self.identities.get(path))
        self.identities[path] = identity
        try:
            if path.lower().endswith(".arrow"):
                return _ArrowFile(path)
            return _ParquetFile(path)
        except PermissionError as error:
            raise unreadable(path, error) from error
        except _library().broken as error:
            what = f"not a whole Parquet or Arrow file ({words_of(error, 200)})"
            raise DataError(102, path, what, "download, copy or write it again") from error

    @cached_property
    def schema(self) -> Any:
        return self.readers[0].schema

    def check_columns(self) -> None:
        """Check that all files have the same columns, and that groups are not too large."""
        for path, reader in zip(self.paths, self.readers, strict=True):
            if not reader.schema.equals(self.schema):
                what = f"its columns {listed(reader.schema.names)} are not {self.paths[0]}'s"
                what += f" {listed(self.schema.names)}, or have other types"
                raise DataError(169, path, what, "name files of one kind")
        if not self.firsts[-1]:
            raise DataError(109, self.paths[0], "has no rows", "give files that hold some")

    @cached_property
    def starts(self) -> list[tuple[int, int]]:
        """The file and the number in it, of each group."""
        return [
            (file, number)
            for file, reader in enumerate(self.readers)
            for number in range(len(reader.rows))
        ]

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first row of each group, and the number of all rows: int64 [groups + 1]."""
        counts = [count for reader in self.readers for count in reader.rows]
        return np.cumsum([0, *counts])

    @cached_property
    def file_firsts(self) -> np.ndarray:
        """The first row of each file, and the number of all rows: int64 [files + 1]."""
        return np.cumsum([0, *(sum(reader.rows) for reader in self.readers)])

    def place(self, index: int) -> tuple[int, int]:
        """Return the group of a row, and the row's number in it."""
        group = int(np.searchsorted(self.firsts, index, side="right")) - 1
        return group, index - int(self.firsts[group])

    def row(self, index: int) -> tuple[str, int]:
        """Return the file of a row, and the row's number in it."""
        file = int(np.searchsorted(self.file_firsts, index, side="right")) - 1
        return self.paths[file], index - int(self.file_firsts[file])

    def num_bytes(self, columns: Collection[FieldColumn]) -> int:
        """Return the bytes of the decoded columns of all groups."""
        names = {column.name for column in columns}
        return sum(self.readers[file].num_bytes(number, names) for file, number in self.starts)

    def tally(self, column: str) -> dict[Any, int]:
        """Return how often each value of a column occurs; {} if there are too many."""
        counts: dict[Any, int] = {}
        for path, reader in zip(self.paths, self.readers, strict=True):
            try:
                for part in reader.batches(column):
                    for item in part.value_counts().to_pylist():
                        if item["values"] is not None:
                            counts[item["values"]] = counts.get(item["values"], 0) + item["counts"]
                    if len(counts) > MOST_CLASSES:
                        return {}
            except _library().broken as error:
                what = f"the column {column} cannot be read ({words_of(error, 200)})"
                raise DataError(102, path, what, "download, copy or write it again") from error
        return counts

    def group(
        self, number: int, columns: Mapping[str, FieldColumn], numbers: Mapping[str, int] | None
    ) -> _Group:
        """Return a decoded group. One thread decodes it, and others wait for it."""
        _ = self.readers
        with self._lock:
            future = self._groups.get(number)
            is_mine = future is None
            if future is None:
                future = self._groups[number] = Future[_Group]()
            self._groups.move_to_end(number)
        if not is_mine:
            return future.result()
        try:
            future.set_result(self._decoded(number, columns, numbers))
        except BaseException as error:
            with self._lock:
                self._groups.pop(number, None)
            future.set_exception(error)
            raise
        self._drop_old()
        return future.result()

    def _drop_old(self) -> None:
        """Drop the groups that were not used for the longest time, until the rest fits."""
        with self._lock:
            ready = {number: f for number, f in self._groups.items() if f.done()}
            total = sum(future.result().num_bytes for future in ready.values())
            for number, future in list(ready.items())[:-1]:
                if total <= self.cache_mb * 10**6:
                    return
                total -= future.result().num_bytes
                del self._groups[number]

    def _decoded(
        self, number: int, columns: Mapping[str, FieldColumn], numbers: Mapping[str, int] | None
    ) -> _Group:
        file, group = self.starts[number]
        path, reader = self.paths[file], self.readers[file]
        identify(path, self.identities[path])
        names = {column.name for column in columns.values()}
        num_bytes = reader.num_bytes(group, names)
        if not 0 <= num_bytes <= MOST_GROUP_BYTES:
            what = f"group {group} has {num_bytes:,} bytes, which must be decoded together"
            raise DataError(102, path, what, "write it with smaller groups (row_group_size=1000)")
        try:
            table = reader.read(group, sorted(names))
            if table.num_rows != reader.rows[group]:
                raise ValueError(f"{table.num_rows} rows, not {reader.rows[group]}")
            values = {
                field: _values(table.column(column.name), column.kind, numbers)
                for field, column in columns.items()
            }
        except _library().broken as error:
            what = f"group {group} cannot be read ({words_of(error, 200)})"
            fix = "download, copy or write it again; columns of lists need lists of one length"
            raise DataError(102, path, what, fix) from error
        return _Group(values, num_bytes)

    def check(self) -> None:
        for path, identity in self.identities.items():
            identify(path, identity)


def _restored(paths: list[str], cache_mb: int, identities: dict[str, Identity]) -> _Files:
    files = _Files(paths, cache_mb)
    files.identities = dict(identities)
    return files


class _Library(NamedTuple):
    arrow: Any
    parquet: Any
    types: Any
    broken: tuple[type[BaseException], ...]  # what it raises for damaged files


def _library() -> _Library:
    import pyarrow  # noqa: ICN001, PLC0415  # an extra
    import pyarrow.parquet  # noqa: PLC0415

    broken = (pyarrow.ArrowException, OSError, ValueError, LookupError, MemoryError, TypeError)
    return _Library(pyarrow, pyarrow.parquet, pyarrow.types, (*broken, OverflowError))


def _kind_of(kind: Any, is_label: bool) -> str | None:
    """Return the kind of a column by its type, and None if a store cannot hold it."""
    types = _library().types
    if types.is_struct(kind):
        fields = {
            kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)
        }
        is_file = fields.keys() == {"bytes", "path"} and _is_bytes(fields["bytes"])
        return "file" if is_file else None
    if _is_bytes(kind):
        return "image"
    if is_label and types.is_dictionary(kind):
        kind = kind.value_type
    if is_label and (types.is_string(kind) or types.is_large_string(kind)):
        return "name"
    while _is_list(kind):
        kind = kind.value_type
    is_number = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return "array" if is_number else None


def _is_bytes(kind: Any) -> bool:
    types = _library().types
    return types.is_binary(kind) or types.is_large_binary(kind)


def _is_list(kind: Any) -> bool:
    types = _library().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _values(column: Any, kind: str, numbers: Mapping[str, int] | None) -> _Values:
    """Return a column of a group. ValueError if its lists have different lengths."""
    if kind == "file":
        names = [column.type.field(number).name for number in range(column.type.num_fields)]
        column = column.flatten()[names.index("bytes")]
    nulls = None
    if column.null_count:
        nulls = np.concatenate([_as_numpy(chunk.is_null()) for chunk in column.chunks])
    if kind in ("image", "file"):
        return _Values(column, nulls)
    make = _nested
    if kind == "name":
        known = numbers or {}
        make = lambda chunk: _class_numbers(chunk, known)  # noqa: E731
    arrays = [make(chunk) for chunk in column.chunks]
    return _Values(np.concatenate(arrays), nulls)


def _nested(chunk: Any) -> np.ndarray:
    """Return numbers, or lists of one length, as [rows, *shape]. Nulls become 0."""
    if not _is_list(chunk.type):
        fill = False if _library().types.is_boolean(chunk.type) else 0
        return _as_numpy(chunk.fill_null(fill) if chunk.null_count else chunk)
    if chunk.null_count:
        raise ValueError("a list is missing")
    lengths = np.unique(_as_numpy(chunk.value_lengths()))
    if len(lengths) > 1:
        raise ValueError(f"lists of {lengths[0]} and of {lengths[-1]} values in one column")
    if chunk.flatten().null_count:
        raise ValueError("a value in a list is missing")
    inner = _nested(chunk.flatten())
    length = int(lengths[0]) if len(lengths) else 0
    return inner.reshape(len(chunk), length, *inner.shape[1:])


def _class_numbers(chunk: Any, numbers: Mapping[str, int]) -> np.ndarray:
    """Return the number of each name: int64 [rows]. A null is 0."""
    if not _library().types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_encode()
    table = np.array([numbers[name] for name in chunk.dictionary.to_pylist()] or [0], np.int64)
    return table[_as_numpy(chunk.indices.fill_null(0)).astype(np.int64)]


def _as_numpy(array: Any) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)


def _names_of_classes(schema: Any, column: str) -> list[str] | None:
    """Return the names of a ClassLabel in the metadata of Hugging Face; None without them."""
    text = (schema.metadata or {}).get(b"huggingface", b"")
    try:
        names = json.loads(text[:MOST_JSON_BYTES])["info"]["features"][column]["names"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_list and len(set(names)) == len(names) else None


def _column_files(path: str) -> list[str]:
    """Return the files of a data set. DataError D101, D192."""
    if not os.path.isdir(path):
        return named_files(path, COLUMNS)
    if os.path.isfile(os.path.join(path, SPLITS)):
        splits = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        raise _several_splits(path, splits, f"{path}/{(splits or ['train'])[0]}")
    if os.path.isfile(os.path.join(path, STATE)):
        return _files_in_state(path)
    names = named_files(path, COLUMNS)
    if splits := _splits_in(path, names):
        first = next((split for split in splits if split.endswith("train")), splits[0])
        raise _several_splits(path, splits, f"{path}/{first}*")
    return names


def _files_in_state(path: str) -> list[str]:
    """Return the files that ``save_to_disk`` wrote: caches beside them are no records."""
    place = os.path.join(path, STATE)
    try:
        with open(place, "rb") as file:
            entries = json.loads(file.read(MOST_JSON_BYTES))["_data_files"]
        names = [str(entry["filename"]) for entry in entries]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(102, place, f"damaged ({words_of(error)})", "save it again") from error
    if not names or any(os.path.basename(name) != name for name in names):
        raise DataError(102, place, "names no file of this folder", "save it again")
    return [os.path.join(path, name) for name in names]


def _splits_in(path: str, files: Sequence[str]) -> list[str]:
    """Return the splits that names of files speak of, if there are several."""
    splits: set[str] = set()
    for file in files:
        stem = os.path.splitext(os.path.relpath(file, path))[0]
        split = NUMBERED.sub("", stem)
        if split != stem or os.path.basename(stem) in USUAL_SPLITS:
            splits.add(split)
    return sorted(splits) if len(splits) > 1 else []


def _several_splits(path: str, splits: Sequence[str], example: str) -> DataError:
    what = f"holds several splits: {listed(splits)}"
    return DataError(192, path, what, f"name one, as in 'data.train={example}'")
