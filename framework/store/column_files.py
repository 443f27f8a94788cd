"""Files of columns: Parquet and Arrow files, opened when they are needed, through pyarrow.

The store over them is ``parquet_store``. Rows lie in groups, which are decoded as a whole.
"""

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch

from framework.contracts.records import Ragged
from framework.errors import DataError, listed, words_of
from framework.store.expansion import MOST_SMALL_BYTES, most_bytes
from framework.store.identity import Identity, identify, unreadable
from framework.store.label import MOST_CLASSES
from framework.store.parquet_pages import ParquetPages

MOST_GROUP_BYTES = 4 << 30  # decoded; a hostile file may declare any number
WRITE_AGAIN = "download, copy or write it again"
MOST_JSON_BYTES = 1 << 24
SCAN_ROWS = 1 << 16
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"  # of Arrow's stream format


class FieldColumn(NamedTuple):
    """A field's column.

    Attributes:
        name: Of the column.
        form: ``bytes``, ``file`` (bytes and path), ``text``, ``name`` (a class), ``array`` (a
            number, or a list of one length) or ``rows`` (a list of any length).
        kind: What the field is, as ``data.kinds`` says; "": by its form.
    """

    name: str
    form: str
    kind: str = ""


class ColumnValues(NamedTuple):
    """A field of a group: buffers that are taken by row, an array [rows, *shape], or Ragged."""

    values: Any
    nulls: np.ndarray | None  # bool [rows]; None: there is none


class RowGroup(NamedTuple):
    """The decoded columns of a group of rows."""

    values: dict[str, ColumnValues]  # by field
    num_bytes: int


class ColumnReader(Protocol):
    """One opened file.

    Attributes:
        schema: The columns.
        rows: The number of rows of each group.
        is_mapped: Whether groups lie in a map, and need no memory.
    """

    schema: Any
    rows: list[int]
    is_mapped: bool

    def num_bytes(self, group: int) -> int:
        """Return the bytes of all columns of a group, as the file says; 0 if they are mapped."""
        ...

    def read(self, group: int, columns: list[str]) -> Any:
        """Return a table of the columns of a group, with offsets that are checked."""
        ...

    def batches(self, column: str) -> Iterator[Any]:
        """Yield a column in pieces."""
        ...


@final
class _ParquetFile:
    """A file that is opened for each group, so that it holds no descriptor meanwhile."""

    is_mapped = False

    def __init__(self, path: str) -> None:
        self.path = path
        with self._open() as file:
            self.metadata = file.metadata
            self.schema = file.schema_arrow
        groups = range(self.metadata.num_row_groups)
        self.rows = [self.metadata.row_group(group).num_rows for group in groups]
        if sum(self.rows) != self.metadata.num_rows or min(self.rows, default=0) < 0:
            raise ValueError(f"its groups hold {sum(self.rows)} of {self.metadata.num_rows} rows")
        row_bytes = sum(_row_bytes(field.type) for field in self.schema)
        declared = max(self.rows, default=0) * row_bytes
        if declared > most_bytes(os.path.getsize(path)):
            raise ValueError(f"a group declares {declared:,} bytes of numbers")

    def _open(self, metadata: Any = None) -> Any:
        return library().parquet.ParquetFile(
            self.path, metadata=metadata, page_checksum_verification=True
        )

    def num_bytes(self, group: int) -> int:
        # pyarrow ends the process if the metadata of a column is damaged, but not that of a group.
        return self.metadata.row_group(group).total_byte_size

    @cached_property
    def _pages(self) -> ParquetPages:
        return ParquetPages(self.path)

    @cached_property
    def _most(self) -> int:
        return min(most_bytes(os.path.getsize(self.path)), 2 * MOST_GROUP_BYTES)

    def read(self, group: int, columns: list[str]) -> Any:
        pieces = list(self._pieces(group, columns, max(1, self.rows[group])))
        table = self.schema.empty_table().select(columns)
        if pieces:
            table = library().arrow.Table.from_batches(pieces)
        table.validate(full=True)
        return table

    def batches(self, column: str) -> Iterator[Any]:
        for group in range(len(self.rows)):
            for batch in self._pieces(group, [column], SCAN_ROWS):
                yield batch.column(0)

    def _pieces(self, group: int, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield a group in pieces of ``rows`` rows, or of fewer if their texts may be long.

        ValueError if they take much more than the file has.
        """
        size = self._pages.decoded(group)
        if size.num_bytes > self._most:
            raise ValueError(f"its pages declare {size.num_bytes:,} bytes")
        if size.largest * self.rows[group] > self._most:  # all rows may share the longest text
            rows = min(rows, max(1, MOST_SMALL_BYTES // 8 // size.largest))
        total = 0
        with self._open(self.metadata) as file:
            # One thread: the reader's own threads read other groups meanwhile.
            for batch in file.iter_batches(rows, [group], columns, use_threads=False):
                total += batch.nbytes
                if total > self._most:
                    raise ValueError(f"its texts take more than {self._most:,} bytes")
                yield batch


@final
class _ArrowFile:
    """A file of Arrow's, as a stream or with an index, whose record batches are mapped."""

    is_mapped = True

    def __init__(self, path: str) -> None:
        arrow = library().arrow
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

    def num_bytes(self, group: int) -> int:
        return 0

    def read(self, group: int, columns: list[str]) -> Any:
        batch = self._batches[group].select(columns)
        batch.validate(full=True)
        return library().arrow.Table.from_batches([batch])

    def batches(self, column: str) -> Iterator[Any]:
        for batch in self._batches:
            part = batch.select([column])
            part.validate(full=True)
            yield part.column(0)


@final
class ColumnFiles:
    """Files that are opened when they are needed, and the decoded groups of all of them."""

    def __init__(self, paths: Sequence[str], cache_mb: int) -> None:
        self.paths = list(paths)
        self.cache_mb = cache_mb
        self.identities: dict[str, Identity] = {}
        self._begin()

    def _begin(self) -> None:
        self._readers: list[ColumnReader] | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._groups: OrderedDict[int, Future[RowGroup]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.paths, self.cache_mb, self.identities)

    def closed(self) -> "ColumnFiles":
        """Return the same files with nothing opened."""
        return _restored(self.paths, self.cache_mb, self.identities)

    @property
    def readers(self) -> list[ColumnReader]:
        if self._process != os.getpid():  # a lock may be held by a thread of the parent
            self._begin()
        if self._readers is None:
            self._readers = [self._opened(path) for path in self.paths]
        return self._readers

    def _opened(self, path: str) -> ColumnReader:
        identity = identify(path, self.identities.get(path))
        self.identities[path] = identity
        try:
            if path.lower().endswith(".arrow"):
                return _ArrowFile(path)
            return _ParquetFile(path)
        except PermissionError as error:
            raise unreadable(path, error) from error
        except library().broken as error:
            what = f"not a whole Parquet or Arrow file ({words_of(error, 200)})"
            raise DataError(102, path, what, WRITE_AGAIN) from error

    @cached_property
    def schema(self) -> Any:
        return self.readers[0].schema

    def check_columns(self) -> None:
        """Check that all files have the same columns, and some row. DataError D109, D169."""
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
            except library().broken as error:
                what = f"the column {column} cannot be read ({words_of(error, 200)})"
                raise DataError(102, path, what, WRITE_AGAIN) from error
        return counts

    def group(
        self, number: int, columns: Mapping[str, FieldColumn], numbers: Mapping[str, int] | None
    ) -> RowGroup:
        """Return a decoded group. One thread decodes it, and others wait for it."""
        _ = self.readers
        with self._lock:
            future = self._groups.get(number)
            is_mine = future is None
            if future is None:
                future = self._groups[number] = Future[RowGroup]()
            self._groups.move_to_end(number)
        if is_mine:
            self._complete(future, number, columns, numbers)
        return future.result()

    def _complete(
        self,
        future: Future[RowGroup],
        number: int,
        columns: Mapping[str, FieldColumn],
        numbers: Mapping[str, int] | None,
    ) -> None:
        """Decode a group, and give it to all threads that wait for it."""
        try:
            future.set_result(self._decoded(number, columns, numbers))
        except BaseException as error:
            with self._lock:
                self._groups.pop(number, None)
            future.set_exception(error)
            raise
        self._drop_old()

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
    ) -> RowGroup:
        file, group = self.starts[number]
        path, reader = self.paths[file], self.readers[file]
        identify(path, self.identities[path])
        num_bytes = reader.num_bytes(group)
        if not 0 <= num_bytes <= MOST_GROUP_BYTES:
            what = f"group {group} has {num_bytes:,} bytes, which must be decoded together"
            raise DataError(102, path, what, "write it with smaller groups (row_group_size=1000)")
        try:
            table = reader.read(group, sorted({column.name for column in columns.values()}))
            if table.num_rows != reader.rows[group]:
                raise ValueError(f"{table.num_rows} rows, not {reader.rows[group]}")
            values = {
                field: _values(table.column(column.name), column, numbers)
                for field, column in columns.items()
            }
        except library().broken as error:
            what = f"group {group} cannot be read ({words_of(error, 200)})"
            raise DataError(102, path, what, WRITE_AGAIN) from error
        return RowGroup(values, 0 if reader.is_mapped else table.nbytes)

    def check(self) -> None:
        for path, identity in self.identities.items():
            identify(path, identity)


def _restored(paths: list[str], cache_mb: int, identities: dict[str, Identity]) -> ColumnFiles:
    files = ColumnFiles(paths, cache_mb)
    files.identities = dict(identities)
    return files


class ColumnLibrary(NamedTuple):
    """The parts of pyarrow that are used."""

    arrow: Any
    parquet: Any
    types: Any
    broken: tuple[type[BaseException], ...]  # what it raises for damaged files


def library() -> ColumnLibrary:
    """Import pyarrow, whose presence ``ParquetStore`` checks."""
    import pyarrow  # noqa: ICN001, PLC0415  # an extra
    import pyarrow.parquet  # noqa: PLC0415

    broken = (pyarrow.ArrowException, OSError, ValueError, LookupError, MemoryError, TypeError)
    return ColumnLibrary(pyarrow, pyarrow.parquet, pyarrow.types, (*broken, OverflowError))


def _row_bytes(kind: Any) -> int:
    """Return the bytes of a decoded value of a type: 0 if they are not known before."""
    types = library().types
    kind = _storage_type(kind)
    if types.is_fixed_size_list(kind):
        return kind.list_size * _row_bytes(kind.value_type)
    return kind.bit_width // 8 if types.is_primitive(kind) else 0


def form_of(kind: Any, is_label: bool) -> str | None:
    """Return the form of a column by its type, and None if a store cannot hold it."""
    types = library().types
    kind = _storage_type(kind)
    if types.is_struct(kind):
        return "file" if _is_file(kind) else None
    if _is_bytes(kind):
        return "bytes"
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return "name" if is_label else "text"
    form = "rows" if types.is_list(kind) or types.is_large_list(kind) else "array"
    while _is_list(kind):
        kind = kind.value_type
    is_number = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return form if is_number else None


def _storage_type(kind: Any) -> Any:
    """Return the type of the values below an extension type, which a program may register."""
    is_extension = isinstance(kind, library().arrow.BaseExtensionType)
    return kind.storage_type if is_extension else kind


def _is_file(struct: Any) -> bool:
    fields = [struct.field(number) for number in range(struct.num_fields)]
    types = {field.name: field.type for field in fields}
    return types.keys() == {"bytes", "path"} and _is_bytes(types["bytes"])


def _is_bytes(kind: Any) -> bool:
    types = library().types
    return types.is_binary(kind) or types.is_large_binary(kind)


def _is_list(kind: Any) -> bool:
    types = library().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _values(values: Any, column: FieldColumn, numbers: Mapping[str, int] | None) -> ColumnValues:
    """Return a column of a group. ValueError if its lists have wrong lengths."""
    values = _stored(values, column.form)
    nulls = None
    if values.null_count:
        nulls = np.concatenate([_as_numpy(chunk.is_null()) for chunk in values.chunks])
    if column.form in ("bytes", "file", "text"):
        if library().types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        return ColumnValues(values, nulls)
    if column.form == "rows":
        return ColumnValues(_rows(values.chunks, column.kind), nulls)
    if column.form == "name":
        arrays = [_class_numbers(chunk, numbers or {}) for chunk in values.chunks]
    else:
        arrays = [_nested(chunk) for chunk in values.chunks]
    return ColumnValues(np.concatenate(arrays), nulls)


def _stored(values: Any, form: str) -> Any:
    """Return a column with its storage type; of a column of files, only the bytes."""
    kind = _storage_type(values.type)
    if kind != values.type:
        values = library().arrow.chunked_array([chunk.storage for chunk in values.chunks], kind)
    if form != "file":
        return values
    names = [kind.field(number).name for number in range(kind.num_fields)]
    return values.flatten()[names.index("bytes")]


def _rows(chunks: Sequence[Any], kind: str) -> Ragged:
    """Return lists of any length as ragged arrays. A missing list has no rows."""
    lengths = [_as_numpy(chunk.value_lengths().fill_null(0)) for chunk in chunks]
    lists = [chunk.flatten() for chunk in chunks]
    if any(part.null_count for part in lists):
        raise ValueError("a value in a list is missing")
    arrays = [_nested(part) for part in lists]
    # Lists in a list have a length only if there are any.
    rows = np.concatenate([array for array in arrays if len(array)] or arrays[:1])
    if kind in ("boxes", "points"):
        with np.errstate(over="ignore"):  # a hostile file's own
            rows = rows.astype(np.float32)
    return Ragged(
        torch.from_numpy(rows), torch.from_numpy(np.concatenate(lengths).astype(np.int64))
    )


def _nested(chunk: Any) -> np.ndarray:
    """Return numbers, or lists of one length, as [rows, *shape]. Nulls become 0."""
    if not _is_list(chunk.type):
        fill = False if library().types.is_boolean(chunk.type) else 0
        return _as_numpy(chunk.fill_null(fill) if chunk.null_count else chunk)
    if chunk.null_count:
        raise ValueError("a list is missing")
    lengths = np.unique(_as_numpy(chunk.value_lengths()))
    if len(lengths) > 1:
        raise ValueError(f"lists of {lengths[0]} and of {lengths[-1]} values, which are no array")
    if chunk.flatten().null_count:
        raise ValueError("a value in a list is missing")
    inner = _nested(chunk.flatten())
    length = int(lengths[0]) if len(lengths) else 0
    return inner.reshape(len(chunk), length, *inner.shape[1:])


def _class_numbers(chunk: Any, numbers: Mapping[str, int]) -> np.ndarray:
    """Return the number of each name: int64 [rows]. A null is 0."""
    if not library().types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_encode()
    table = np.array([numbers[name] for name in chunk.dictionary.to_pylist()] or [0], np.int64)
    return table[_as_numpy(chunk.indices.fill_null(0)).astype(np.int64)]


def _as_numpy(array: Any) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)


def names_of_classes(schema: Any, column: str) -> list[str] | None:
    """Return the names of a ClassLabel in the metadata of Hugging Face; None without them."""
    names: Any = _feature(schema, column).get("names")
    try:
        "".join(names).encode()  # ValueError for half characters, which cannot be printed
    except (ValueError, TypeError):
        return None
    return names if isinstance(names, list) and len(set(names)) == len(names) else None


def has_fixed_shape(schema: Any, column: str) -> bool:
    """Return whether the metadata of Hugging Face gives arrays one shape, as ``Array2D`` does."""
    shape = _feature(schema, column).get("shape")
    return isinstance(shape, list) and all(type(size) is int for size in shape)


def _feature(schema: Any, column: str) -> dict[str, Any]:
    text = (schema.metadata or {}).get(b"huggingface", b"")
    try:
        feature = json.loads(text[:MOST_JSON_BYTES])["info"]["features"][column]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return feature if isinstance(feature, dict) else {}
