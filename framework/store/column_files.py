"""Parquet and Arrow files, through pyarrow. Rows lie in groups, which are decoded as a whole."""

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import IO, Any, NamedTuple, final

import numpy as np
import torch

from framework.contracts.records import Ragged
from framework.errors import DataError, listed, words_of
from framework.store.files import Identity, identify, unreadable
from framework.store.foreign import DAMAGE, MOST_CLASSES, most_bytes

MOST_GROUP_BYTES = (1 << 31) - 1  # decoded, so that any column of it is one array of Arrow's
MOST_JSON_BYTES = 1 << 24
PIECE_ROWS = 4096  # decoded before their bytes are counted
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"  # of Arrow's stream format


class FieldColumn(NamedTuple):
    name: str
    # ``bytes``, ``file`` (bytes and path), ``text``, ``name`` (of a class), ``array`` (a number, or
    # a list of one length) or ``rows`` (a list of any length).
    form: str
    kind: str = ""  # what the field is, as ``data.kinds`` says; "": by its form


class Strings(NamedTuple):
    buffer: memoryview
    starts: np.ndarray  # [rows]
    stops: np.ndarray


class ColumnValues(NamedTuple):
    """A field of a group: Strings, an array [rows, *shape], or Ragged."""

    values: Any
    nulls: np.ndarray | None  # bool [rows]; None: there is none


class RowGroup(NamedTuple):
    """The decoded columns of a group of rows, by field, and their bytes in memory."""

    values: dict[str, ColumnValues]
    num_bytes: int


def library() -> Any:
    """Import pyarrow, whose presence ``ParquetStore`` checks."""
    import pyarrow  # noqa: ICN001, PLC0415  # an extra
    import pyarrow.parquet  # noqa: PLC0415  # pyright: ignore[reportUnusedImport]

    return pyarrow


@contextmanager
def _reading(path: str, otherwise: str) -> Generator[None]:
    """Raise DataError D102, which says ``otherwise``, for what pyarrow raises for damaged files."""
    try:
        yield
    except (library().ArrowException, *DAMAGE, TypeError) as error:
        what = f"{otherwise} ({words_of(error, 200)})"
        raise DataError(102, path, what, "download, copy or write it again") from error


@final
class _ParquetFile:
    """A file that is opened for each group, so that it holds no descriptor meanwhile."""

    is_mapped = False  # groups need memory

    def __init__(self, path: str) -> None:
        self.path = path
        with self._open() as file:
            self.metadata = file.metadata
            self.schema = file.schema_arrow
        groups = range(self.metadata.num_row_groups)
        self.rows = [self.metadata.row_group(group).num_rows for group in groups]
        if sum(self.rows) != self.metadata.num_rows or min(self.rows, default=0) < 0:
            raise ValueError(f"its groups hold {sum(self.rows)} of {self.metadata.num_rows} rows")
        declared = max(self.rows, default=0) * sum(map(_row_bytes, self.schema.types))
        if declared > most_bytes(os.path.getsize(path)):
            raise ValueError(f"a group declares {declared:,} bytes of numbers")

    def _open(self, metadata: Any = None) -> Any:
        open_file = library().parquet.ParquetFile
        return open_file(self.path, metadata=metadata, page_checksum_verification=True)

    def read(self, group: int, columns: list[str]) -> Any:
        # pyarrow ends the process if the metadata of a column is damaged, but not that of a group.
        num_bytes = self.metadata.row_group(group).total_byte_size
        if not 0 <= num_bytes <= MOST_GROUP_BYTES:
            what = f"group {group} has {num_bytes:,} bytes, which must be decoded together"
            raise DataError(102, self.path, what, "write smaller groups (row_group_size=1000)")
        # A page of a few bytes may stand for any number of equal values, so decode piece by piece.
        most = min(most_bytes(os.path.getsize(self.path)), MOST_GROUP_BYTES)
        pieces: list[Any] = []
        with self._open(self.metadata) as file:
            # One thread: the reader's own threads read other groups meanwhile.
            for piece in file.iter_batches(PIECE_ROWS, [group], columns, use_threads=False):
                pieces.append(piece)
                most -= piece.nbytes
                if most < 0:
                    raise ValueError("its rows take far more bytes than the file")
        table = self.schema.empty_table().select(columns)
        if pieces:
            table = library().Table.from_batches(pieces)
        table.validate(full=True)
        return table


@final
class _ArrowFile:
    """A file, as a stream or with an index, whose record batches are mapped."""

    is_mapped = True

    def __init__(self, path: str) -> None:
        arrow = library()
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

    def read(self, group: int, columns: list[str]) -> Any:
        batch = self._batches[group].select(columns)
        batch.validate(full=True)
        return library().Table.from_batches([batch])


@final
class ColumnFiles:
    """Files that are opened when they are needed, and the decoded groups of all of them."""

    def __init__(self, paths: Sequence[str], cache_mb: int) -> None:
        self.paths, self.cache_mb = list(paths), cache_mb
        self.identities: dict[str, Identity] = {}
        self.close()

    def close(self) -> None:
        """Forget what was opened and decoded."""
        self._readers: list[_ParquetFile | _ArrowFile] | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._groups: OrderedDict[int, Future[RowGroup]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnFiles, (self.paths, self.cache_mb), {"identities": dict(self.identities)}

    @property
    def readers(self) -> list[_ParquetFile | _ArrowFile]:
        if self._process != os.getpid():  # a lock may be held by a thread of the parent
            self.close()
        if self._readers is not None:
            return self._readers
        readers: list[_ParquetFile | _ArrowFile] = []
        for path in self.paths:
            self.identities[path] = identify(path, self.identities.get(path))
            kind = _ArrowFile if path.lower().endswith(".arrow") else _ParquetFile
            with _reading(path, "not a whole Parquet or Arrow file"):
                try:
                    readers.append(kind(path))
                except PermissionError as error:
                    raise unreadable(path, error) from error
        self._readers = readers
        return readers

    @cached_property
    def schema(self) -> Any:
        """The columns of all files. DataError D109 without a row, D169 if they differ."""
        schema = self.readers[0].schema
        for path, reader in zip(self.paths, self.readers, strict=True):
            if not reader.schema.equals(schema):
                what = f"its columns {listed(reader.schema.names)} are not {self.paths[0]}'s"
                what += f" {listed(schema.names)}, or have other types"
                raise DataError(169, path, what, "name files of one kind")
        if not self.firsts[-1]:
            raise DataError(109, self.paths[0], "has no rows", "give files that hold some")
        return schema

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first row of each group, and the number of all rows: int64 [groups + 1]."""
        return np.cumsum([0, *(count for reader in self.readers for count in reader.rows)])

    @cached_property
    def _file_firsts(self) -> np.ndarray:
        """The first row of each file, and the number of all rows: int64 [files + 1]."""
        return np.cumsum([0, *(sum(reader.rows) for reader in self.readers)])

    def row(self, index: int) -> tuple[str, int]:
        """Return the file of a row, and the row's number in it."""
        file = int(np.searchsorted(self._file_firsts, index, side="right")) - 1
        return self.paths[file], index - int(self._file_firsts[file])

    def value_counts(self, column: str) -> dict[Any, int]:
        """Return how often each value of a column occurs; {} if there are too many."""
        counts: dict[Any, int] = {}
        for path, reader, group in self._places():
            with _reading(path, f"the column {column} cannot be read"):
                for item in reader.read(group, [column]).column(0).value_counts().to_pylist():
                    if item["values"] is not None:
                        counts[item["values"]] = counts.get(item["values"], 0) + item["counts"]
            if len(counts) > MOST_CLASSES:
                return {}
        return counts

    def _places(self) -> list[tuple[str, _ParquetFile | _ArrowFile, int]]:
        """Return the file of each group, and the group's number in it."""
        files = zip(self.paths, self.readers, strict=True)
        return [
            (path, reader, group) for path, reader in files for group in range(len(reader.rows))
        ]

    def group(
        self, number: int, columns: Mapping[str, FieldColumn], numbers: Mapping[str, int] | None
    ) -> RowGroup:
        """Return a decoded group. ``numbers`` has the number of each name of a class."""
        _ = self.readers
        with self._lock:
            future = self._groups.get(number)
            is_mine = future is None
            if future is None:
                future = self._groups[number] = Future[RowGroup]()
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
        with self._lock:  # drop the groups that were not used for the longest time
            ready = {key: each.result() for key, each in self._groups.items() if each.done()}
            total = sum(group.num_bytes for group in ready.values())
            for key in list(ready)[:-1]:
                if total <= self.cache_mb * 10**6:
                    break
                total -= ready[key].num_bytes
                del self._groups[key]
        return future.result()

    def _decoded(
        self, number: int, columns: Mapping[str, FieldColumn], numbers: Mapping[str, int] | None
    ) -> RowGroup:
        path, reader, group = self._places()[number]
        identify(path, self.identities[path])
        with _reading(path, f"group {group} cannot be read"):
            table = reader.read(group, sorted({column.name for column in columns.values()}))
            if table.num_rows != reader.rows[group]:
                raise ValueError(f"{table.num_rows} rows, not {reader.rows[group]}")
            values = {
                field: _values(table.column(column.name), column, numbers or {})
                for field, column in columns.items()
            }
        return RowGroup(values, 0 if reader.is_mapped else table.nbytes)


def form_of(kind: Any, is_label: bool) -> str | None:
    """Return the form of a column by its type, and None if a store cannot hold it."""
    types = library().types
    kind = _storage_type(kind)
    if types.is_struct(kind):
        parts = {field.name: field.type for field in kind}
        is_file = parts.keys() == {"bytes", "path"} and form_of(parts["bytes"], False) == "bytes"
        return "file" if is_file else None
    if types.is_binary(kind) or types.is_large_binary(kind):
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


def _row_bytes(kind: Any) -> int:
    # 0 for types whose values have any length.
    types = library().types
    kind = _storage_type(kind)
    if types.is_fixed_size_list(kind):
        return kind.list_size * _row_bytes(kind.value_type)
    return kind.bit_width // 8 if types.is_primitive(kind) else 0


def _storage_type(kind: Any) -> Any:
    # A program may register extension types.
    return kind.storage_type if isinstance(kind, library().BaseExtensionType) else kind


def _is_list(kind: Any) -> bool:
    types = library().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _values(values: Any, column: FieldColumn, numbers: Mapping[str, int]) -> ColumnValues:
    """Return a column of a group. ValueError if its lists have wrong lengths."""
    arrow = library()
    array = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    if isinstance(array.type, arrow.BaseExtensionType):
        array = array.storage
    if column.form == "file":
        array = array.flatten()[array.type.get_field_index("bytes")]
    nulls = _as_numpy(array.is_null()) if array.null_count else None
    is_dictionary = arrow.types.is_dictionary(array.type)
    if column.form == "array":
        return ColumnValues(_nested(array), nulls)
    if column.form == "rows":  # a missing list has no rows
        lengths = _as_numpy(array.value_lengths().fill_null(0)).astype(np.int64)
        rows = _nested(array.flatten(), "a value in a list is missing")
        with np.errstate(over="ignore"):  # a hostile file's own
            rows = rows.astype(np.float32 if column.kind in ("boxes", "points") else rows.dtype)
        return ColumnValues(Ragged(torch.from_numpy(rows), torch.from_numpy(lengths)), nulls)
    if column.form == "name":  # a missing name is 0
        encoded = array if is_dictionary else array.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        table = np.array([numbers[name] for name in names] or [0], np.int64)
        return ColumnValues(table[_as_numpy(encoded.indices.fill_null(0)).astype(np.int64)], nulls)
    if is_dictionary:
        array = array.dictionary_decode()
    _, offsets, data = array.buffers()
    is_large = arrow.types.is_large_binary(array.type) or arrow.types.is_large_string(array.type)
    ends = np.zeros(1, np.int64)
    if len(array):
        ends = np.frombuffer(offsets, np.int64 if is_large else np.int32)[array.offset :]
    buffer = memoryview(data or b"").cast("B")
    return ColumnValues(Strings(buffer, ends[: len(array)], ends[1 : len(array) + 1]), nulls)


def _nested(array: Any, missing: str = "") -> np.ndarray:
    """Return numbers or lists of one length: [rows, *shape]. ValueError ``missing`` for a null."""
    if missing and array.null_count:
        raise ValueError(missing)
    if not _is_list(array.type):
        fill = False if library().types.is_boolean(array.type) else 0
        return _as_numpy(array.fill_null(fill) if array.null_count else array)
    if array.null_count:
        raise ValueError("a list is missing")
    lengths = np.unique(_as_numpy(array.value_lengths()))
    if len(lengths) > 1:
        raise ValueError(f"lists of {lengths[0]} and of {lengths[-1]} values, which are no array")
    inner = _nested(array.flatten(), "a value in a list is missing")
    length = int(lengths[0]) if len(lengths) else 0
    return inner.reshape(len(array), length, *inner.shape[1:])


def _as_numpy(array: Any) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)


def hugging_face_feature(schema: Any, column: str) -> dict[str, Any]:
    """Return what the metadata of Hugging Face says of a column; {} without it."""
    text = (schema.metadata or {}).get(b"huggingface", b"")
    try:
        feature = json.loads(text[:MOST_JSON_BYTES])["info"]["features"][column]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return feature if isinstance(feature, dict) else {}


def write_row_groups(
    file: IO[bytes], parts: Iterator[Mapping[str, Sequence[str | int | float]]]
) -> None:
    """Write the columns of each part as a group of rows. The first part decides names and types."""
    pa = library()
    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    writer: Any = None
    with ExitStack() as stack:
        for columns in parts:
            if writer is None:
                firsts = {name: values[0] if values else "" for name, values in columns.items()}
                schema = pa.schema([(name, types[type(value)]) for name, value in firsts.items()])
                writer = pa.parquet.ParquetWriter(file, schema, compression="zstd")
                stack.enter_context(writer)
            storable = {
                # The bytes of a file's name may be no UTF-8.
                name: [
                    v.encode(errors="replace").decode() if isinstance(v, str) else v for v in own
                ]
                for name, own in columns.items()
            }
            writer.write_table(pa.table(storable, schema=writer.schema))
