"""What each edit makes of a store: the records of the new version, and those of its layer."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.commands.edit.value_table import ValueTable, placed, read_keys
from framework.contracts.records import Chunk, Field, Manifest, Records, RecordStore
from framework.errors import ConfigError, DataError, listed
from framework.input.store import StoreInput
from framework.order.select import chosen
from framework.pack.engine.publish import as_written, keys_of, spans
from framework.store.columns import StoreFacts, column_of, is_number
from framework.store.file_format import TABLES
from framework.store.label import INTEGER
from framework.store.layered import DROPPED
from framework.store.open_store import open_store
from framework.store.versions import files_of

Parts = Iterator[tuple[Chunk, Chunk | None]]


@dataclass(frozen=True)
class StoreChange:
    """What an edit makes of a store.

    Attributes:
        manifest: Describes the version, but for what its records decide: counts and checksums.
        fields: The fields of the layer.
        num_stored: Records of the layer.
        parts: Yields the records of the version in order, and with each of them the records that
            go into the layer, if any.
    """

    manifest: Manifest
    fields: Mapping[str, Field]
    num_stored: int
    parts: Callable[[], Parts]


def append(path: str, store: RecordStore, value: str) -> StoreChange:
    """Add the records of another store, whose classes are renumbered by their names."""
    source = StoreInput([path, value])
    before = store.manifest
    manifest = replace(
        before,
        num_records=source.manifest.num_records,
        classes=source.manifest.classes,
        first_key=None,  # the numbers of both stores are not consecutive
        schema=3,
    )
    count = before.num_records

    def parts() -> Parts:
        for chunk, _ in _passing(store, path):
            yield chunk, None
        for start, stop in _ranges(manifest.num_records - count, files_of(value)):
            chunk = source.read(count + start, count + stop)
            yield chunk, chunk

    return StoreChange(manifest, before.fields, manifest.num_records - count, parts)


def drop(path: str, store: RecordStore, value: str) -> StoreChange:
    """Leave out the records that an expression or a file of keys selects."""
    count = store.manifest.num_records
    dropped = _dropped(store, value)
    fields = {DROPPED: Field("int64", (len(dropped),))}
    mask = np.ones(count, bool)
    mask[dropped] = False

    def parts() -> Parts:
        stored: Chunk | None = Chunk({DROPPED: dropped[None]}, [""])
        for chunk, rows in _passing(store, path):
            yield _kept(chunk, np.flatnonzero(mask[rows])), stored
            stored = None

    left = count - len(dropped)
    # Numbers of records that are kept have gaps.
    manifest = replace(store.manifest, num_records=left, first_key=None, schema=3)
    return StoreChange(manifest, fields, 1, parts)


def _dropped(store: RecordStore, value: str) -> np.ndarray:
    """Return the records to drop. ConfigError C251 if that would be none or all."""
    count = store.manifest.num_records
    if os.path.isfile(value):
        dropped = np.unique(placed(store, read_keys(value), value))
    else:
        dropped = _selected(store, value)
    if len(dropped) in (0, count):
        what = f"would drop {len(dropped):,} of {count:,} records"
        raise ConfigError(251, f"drop = {value}", what, "drop some, but not all")
    return dropped


def _selected(store: RecordStore, text: str) -> np.ndarray:
    """Return the records that fulfil an expression. ConfigError C251."""
    try:
        records = chosen(store.manifest.num_records, StoreFacts(store), text, None, True)
    except ConfigError as error:
        _, _, what, fix = error.args
        fix = fix.replace("select=", "drop=")
        if os.path.splitext(text)[1]:
            fix += ", or name a file with a key per line"
        raise ConfigError(251, f"drop = {text}", what, fix) from error
    return np.zeros(0, np.int64) if records is None else records.numpy()


def _kept(chunk: Chunk, places: np.ndarray) -> Chunk:
    """Return some of the records of a chunk."""
    records: Records = {}
    for name, values in chunk.records.items():
        is_array = isinstance(values, np.ndarray)
        records[name] = values[places] if is_array else [values[place] for place in places]
    return Chunk(records, [""] * len(places))


def relabel(path: str, store: RecordStore, value: str) -> StoreChange:
    """Replace values of fields that are numbers or texts, for the records that a table names."""
    table = ValueTable(value)
    rows = table.places(store)
    manifest = store.manifest
    fields = {name: _replaceable(manifest, name, value) for name in table.names}
    columns = {name: _new_values(table, name, manifest) for name in table.names}
    order = np.argsort(rows)
    _check_change(store, rows, columns, value)
    ordered = rows[order]

    def parts() -> Parts:
        for chunk, passing in _passing(store, path):
            start = passing.start
            first, last = np.searchsorted(ordered, [start, passing.stop])
            for row in order[first:last]:
                for name, values in columns.items():
                    chunk.records[name][rows[row] - start] = values[row]
            yield chunk, _only(chunk, fields)

    return StoreChange(manifest, fields, manifest.num_records, parts)


def _replaceable(manifest: Manifest, name: str, path: str) -> Field:
    """Return a field whose values a table can give. DataError D253."""
    fields = manifest.fields
    known = [own for own, field in fields.items() if is_number(field) or field.kind == "text"]
    if name not in known:
        what = f"its column {name} is not a field with one number or text per record"
        fix = f"choose from {listed(known)}" if known else "use add= for a new field"
        raise DataError(253, path, what, fix)
    return fields[name]


def _new_values(table: ValueTable, name: str, manifest: Manifest) -> Any:
    """Return the values of a column as a writer takes them. DataError D161 or D253."""
    field = manifest.fields[name]
    cells = table.cells(name)
    if field.kind == "text":
        return [np.frombuffer(cell.encode(errors="surrogateescape"), np.uint8) for cell in cells]
    if name == "label" and manifest.classes:
        return np.array(_labels(cells, manifest.classes, table), field.dtype)
    values = np.zeros(len(cells), field.dtype)
    for row, cell in enumerate(cells):
        try:
            values[row] = _number(cell.strip(), values.dtype)
        except (KeyError, ValueError, OverflowError) as error:
            what = f"{cell[:40]!r} is not {field.dtype}"
            raise DataError(253, table.place(row), what, f"correct the column {name}") from error
    return values


def _labels(cells: Sequence[str], classes: Sequence[str], table: ValueTable) -> list[int]:
    """Return the label in each cell: the name of a class, or else its number. DataError D161."""
    numbers = {name: number for number, name in enumerate(classes)}
    labels: list[int] = []
    for row, cell in enumerate(cells):
        number = numbers.get(cell, -1)
        if number < 0 and INTEGER.fullmatch(cell.strip()):
            number = int(cell.strip()[:20])
        if not 0 <= number < len(classes):
            what = f"{cell[:40]!r} is neither a class of the store nor the number of one"
            fix = f"choose from {listed(classes)}; append= of a store with another class adds it"
            raise DataError(161, table.place(row), what, fix)
        labels.append(number)
    return labels


def _number(cell: str, dtype: np.dtype[Any]) -> Any:
    """Return the number in a cell. ValueError or OverflowError if ``dtype`` cannot hold it."""
    if dtype.kind == "b":
        return {"true": True, "1": True, "false": False, "0": False}[cell.lower()]
    if "_" in cell or not cell.isascii():  # NumPy would read 1_2 as 12
        raise ValueError
    with np.errstate(over="ignore"):
        number = np.array(cell).astype(dtype)
    if dtype.kind == "f" and np.isinf(number) and "inf" not in cell.lower():
        raise OverflowError
    return number


def _check_change(
    store: RecordStore, rows: np.ndarray, columns: Mapping[str, Sequence[Any]], path: str
) -> None:
    """Check that a value differs from the one before. DataError D253."""
    for name, values in columns.items():
        column = as_written({name: column_of(store, name)})[name]
        before = [column[row] for row in rows.tolist()]
        if not all(map(np.array_equal, before, values)):
            return
    raise DataError(253, path, "has the values that the records have already", "correct it")


def add(path: str, store: RecordStore, value: str) -> StoreChange:
    """Give each record new fields, from a store or a table with the same keys."""
    manifest = store.manifest
    is_table = value.lower().endswith(TABLES)
    fields, classes, read = _of_table(store, value) if is_table else _of_store(store, value)
    if present := [name for name in fields if name in manifest.fields]:
        what = f"has the fields {', '.join(present)}, which the store has already"
        fix = "leave them out, or replace numbers and texts with relabel="
        raise DataError(253, value, what, fix)
    classes = classes or manifest.classes
    version = replace(manifest, fields={**manifest.fields, **fields}, classes=classes, schema=3)

    def parts() -> Parts:
        for chunk, rows in _passing(store, path):
            chunk.records.update(read(rows.start, rows.stop))
            yield chunk, _only(chunk, fields)

    return StoreChange(version, fields, manifest.num_records, parts)


Added = tuple[Mapping[str, Field], Sequence[str], Callable[[int, int], Records]]


def _of_table(store: RecordStore, path: str) -> Added:
    """Return the fields of a table, its classes, and a function that reads a range of records."""
    table = ValueTable(path)
    rows = table.places(store)
    count = store.manifest.num_records
    if len(rows) != count:
        fix = "give a row for each record"
        raise DataError(253, path, f"has {len(rows):,} rows for {count:,} records", fix)
    source = table.as_input()
    ordered = _kept(source.read(0, count), np.argsort(rows)).records

    def read(start: int, stop: int) -> Records:
        return {name: values[start:stop] for name, values in ordered.items()}

    return source.manifest.fields, source.manifest.classes, read


def _of_store(store: RecordStore, path: str) -> Added:
    """Return the fields of another store, its classes, and a function that reads a range."""
    other = open_store(path)
    rows = _matched(store, other, path)

    def read(start: int, stop: int) -> Records:
        return _intact(other, torch.from_numpy(rows[start:stop]))

    return other.manifest.fields, other.manifest.classes, read


def _matched(store: RecordStore, other: RecordStore, path: str) -> np.ndarray:
    """Return the record of the other store for each record: the one with the same key."""
    keys, others = (
        list(keys_of(part, torch.arange(part.manifest.num_records))) for part in (store, other)
    )
    return np.arange(len(keys)) if keys == others else placed(other, keys, path)


def _only(chunk: Chunk, fields: Mapping[str, Field]) -> Chunk:
    """Return the fields that a layer holds. Its records have no keys of their own."""
    return Chunk({name: chunk.records[name] for name in fields}, [""] * len(chunk.keys))


def _passing(store: RecordStore, path: str) -> Iterator[tuple[Chunk, slice]]:
    """Yield all records of a store in order, without their keys, and which records they are."""
    for start, stop in _ranges(store.manifest.num_records, files_of(path)):
        records = _intact(store, torch.arange(start, stop))
        yield Chunk(records, [""] * (stop - start)), slice(start, stop)


def _intact(store: RecordStore, indices: Tensor) -> Records:
    """Read records as a writer takes them. DataError D255 if one is damaged."""
    records = store.read(indices)
    if damaged := store.damaged(indices, records):
        what = "its bytes are not what their CRC32 says"
        fix = "see what else is damaged with paceline verify"
        raise DataError(255, store.name(damaged[0]), what, fix)
    return as_written(records)


def _ranges(num_records: int, files: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield ranges of records of some megabytes, from 0 to ``num_records``."""
    num_bytes = sum(os.path.getsize(file) for file in files)
    for indices in spans(num_records, num_bytes):
        yield int(indices[0]), int(indices[-1]) + 1


CHANGES: Mapping[str, Callable[[str, RecordStore, str], StoreChange]] = {
    "append": append,
    "drop": drop,
    "relabel": relabel,
    "add": add,
}
