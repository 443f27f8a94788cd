"""Stores that are packed already: several into one, or with other records, values and fields."""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from types import FunctionType
from typing import Any, NamedTuple, NoReturn, final

import numpy as np
import torch

from framework.contracts import records as contract
from framework.contracts.records import LABEL, Chunk, Field, Manifest
from framework.errors import DataError, listed
from framework.input.function import rows_of
from framework.input.list import read_table
from framework.input.rows import Row, chunk_of, first_fields, typed_row
from framework.order.select import ExpressionWords, selected
from framework.pack.jobs import as_written, joined, keys_of
from framework.store.foreign import INTEGER, NUMBER, OF_STRINGS
from framework.store.open_store import MANIFEST, open_store
from framework.store.store_facts import RECORD, StoreFacts, is_number
from framework.system.user_code import CodeDigest, digest_of

KEY = "key"  # of a record, for the user's function
BLOCK_KEYS = 1 << 16  # looked up at once
EXAMPLE = "compare fields, as in 'input.select=label in [3, 5] and width >= 224'"
WORDS = ExpressionWords("input.select", "record", EXAMPLE)
NAMING = ("key", "index")  # columns that say which record a row is about


class NewValues(NamedTuple):
    """The values that some records get; ``sha256`` is the table's."""

    records: np.ndarray  # their numbers, ascending: int64 [n]
    values: contract.Records  # by field: [n], or a list of n texts, arrays of uint8
    sha256: str


@final
class StoreInput(contract.InputTraits):
    """The records of one store or several, in order, under their own keys.

    The fields of all stores must agree. Classes are united by name, in the order in which they come
    first, and labels are renumbered. A damaged record is an error, so that damage is not packed
    again. ``select`` sees the values that ``relabel`` gives, and ``add`` the records that
    ``select`` leaves. ``conf/input/store.yaml`` describes the options.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        relabel: str | None = None,
        select: str | None = None,
        add: Callable[[Row], Row] | None = None,
    ) -> None:
        self.paths = [path] if isinstance(path, str) else [str(part) for part in path]
        if not self.paths:
            raise DataError(110, "input.path", "no store", "give at least one")
        self.relabel = relabel
        self.select = select
        self.kinds: Mapping[str, str] = {}  # of the fields that ``add`` makes
        self._add = add
        self.own_code = CodeDigest()
        if add is not None:
            named: Any = add
            if isinstance(add, partial):
                # Hydra's partial asks for permission at each call, which takes 80 us
                self._add = partial(add.func, *add.args, **add.keywords)
                named = add.func
            if not isinstance(named, type | FunctionType):
                named = type(named)
            self._function = f"{named.__module__}.{named.__qualname__}"
            self.own_code = digest_of(self._add, (named.__module__.partition(".")[0],))

    @cached_property
    def stores(self) -> list[contract.RecordStore]:
        return [open_store(path) for path in self.paths]

    @cached_property
    def starts(self) -> list[int]:
        """The number of each store's first record, and the number of all records."""
        return np.cumsum([0, *(store.manifest.num_records for store in self.stores)]).tolist()

    @cached_property
    def manifest(self) -> Manifest:
        manifest = self._stored
        options = dict(manifest.options)
        if self.new_values is not None:
            options["relabel"] = f"{self.relabel} (sha256 {self.new_values.sha256})"
        if self.select is not None:
            options["select"] = self.select
        if self._add is not None:
            options["add"] = self._function
        fields = {**manifest.fields, **self._new_fields}
        return replace(manifest, num_records=len(self._records), fields=fields, options=options)

    @cached_property
    def _stored(self) -> Manifest:
        """Describes the records of all stores as they are. DataError D110, D169."""
        first, *others = (store.manifest for store in self.stores)
        for path, other in zip(self.paths[1:], others, strict=True):
            if other.fields != first.fields:
                what = f"its fields {_text(other)} are not {self.paths[0]}'s {_text(first)}"
                raise DataError(169, path, what, "pack it with the same pack.size and encode first")
            if bool(other.classes) != bool(first.classes):
                what = f"only one of it and {self.paths[0]} names its classes"
                raise DataError(169, path, what, "pack both with classes, or both without")
        if not self.starts[-1]:
            raise DataError(110, self.paths[0], "no record", "give stores that hold some")
        label, count = first.fields.get(LABEL), len(self.classes)
        is_small = label is not None and label.dtype in ("uint8", "int8")
        if others and label and is_small and count > np.iinfo(label.dtype).max + 1:
            what = f"{count} classes do not fit {label.dtype}"
            raise DataError(169, self.paths[0], what, "pack wider labels first")
        options = first.options
        if any(other.options != options for other in others):
            options = {}
        source = f"stores {', '.join(self.paths)}" if others else first.source
        return Manifest(self.starts[-1], first.fields, self.classes, source=source, options=options)

    @cached_property
    def classes(self) -> list[str]:
        return list(dict.fromkeys(name for store in self.stores for name in store.manifest.classes))

    @cached_property
    def new_values(self) -> NewValues | None:
        if self.relabel is None:
            return None
        keys = (
            keys_of(store, indices)
            for store in self.stores
            for indices in torch.arange(store.manifest.num_records).split(BLOCK_KEYS)
        )
        return read_new_values(self.relabel, self._stored, keys)

    @cached_property
    def _records(self) -> np.ndarray | range:
        """The numbers of the selected records in all stores, ascending."""
        count = self._stored.num_records
        if self.select is None:
            return range(count)
        return selected(self.select, _Facts(self), count, WORDS)

    @cached_property
    def _new_fields(self) -> dict[str, Field]:
        if self._add is None:
            return {}
        own = self._stored.fields
        kinds = {name: kind for name, kind in self.kinds.items() if name not in own}

        def rows(index: int) -> list[Row]:
            return self._added(self._read_stored(index, index + 1), [self.name(index)])

        fields = first_fields(len(self._records), rows, self.name, kinds)
        if present := [name for name in fields if name in own]:
            what = f"makes the field {present[0]}, which the records have already"
            fix = "give it another name; input.relabel=TABLE replaces numbers and texts"
            raise DataError(255, f"input.add = {self._function}", what, fix)
        return fields

    def read(self, start: int, stop: int) -> Chunk:
        chunk = self._read_stored(start, stop)
        if self._add is None or not len(chunk.keys):
            return chunk
        names = [self.name(index) for index in range(start, start + len(chunk.keys))]
        new = chunk_of(self._added(chunk, names), chunk.keys, self._new_fields, names)
        return Chunk({**chunk.records, **new.records}, chunk.keys)

    def _read_stored(self, start: int, stop: int) -> Chunk:
        """Return records without the fields of ``add``."""
        numbers = np.asarray(self._records[start:stop], np.int64)
        cuts = np.searchsorted(numbers, self.starts)
        parts: list[Chunk] = []
        for number, store in enumerate(self.stores):
            rows = numbers[cuts[number] : cuts[number + 1]] - self.starts[number]
            if not len(rows):
                continue
            indices = torch.from_numpy(rows)
            store.check()  # an open store stays readable after its file was replaced
            read = store.read(indices)
            if damaged := store.damaged(indices, read):
                what = "its bytes are not what their CRC32 says"
                raise DataError(166, store.name(damaged[0]), what, "run paceline verify")
            records = as_written(read)
            if LABEL in records:
                records[LABEL] = self.renumbered(records[LABEL], number)
            parts.append(Chunk(records, keys_of(store, indices)))
        chunk = joined(parts, self._stored.fields)
        if self.new_values is not None:
            named = self.new_values.records
            _, rows, places = np.intersect1d(named, numbers, True, return_indices=True)
            for name, values in self.new_values.values.items():
                for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                    chunk.records[name][place] = values[row]
        return chunk

    def renumbered(self, labels: Any, number: int) -> Any:
        """Return the labels of a store, an array or a list of arrays, for all classes. D161."""
        own = self.stores[number].manifest.classes
        if len(self.stores) == 1 or not own:
            return labels
        if isinstance(labels, list):
            return [self.renumbered(array, number) for array in labels]
        if ((labels < 0) | (labels >= len(own))).any():
            what = f"has a label that is none of its {len(own)} classes"
            raise DataError(161, self.paths[number], what, "correct that store")
        numbers = np.array(list(map(self.classes.index, own)), np.int64)
        return numbers[labels.astype(np.int64)].astype(labels.dtype)

    def _added(self, chunk: Chunk, names: Sequence[str]) -> list[Row]:
        add: Any = self._add

        def checked(record: Row) -> Row:
            made = add(record)
            if not isinstance(made, dict) or not made:
                what = f"{self._function} returned {made!r}"[:200]
                fix = "return a dict with a value for each new field, as in {'score': 0.3}"
                raise DataError(167, where, what, fix)
            return made

        fix = "leave the record out with input.select"
        rows: list[Row] = []
        for place, where in enumerate(names):
            record: Row = {KEY: chunk.keys[place]}
            for name, field in self._stored.fields.items():
                # As a function may also return it. It may change an array as it likes.
                value = chunk.records[name][place]
                if field.kind in OF_STRINGS:
                    value = value.tobytes()
                    if OF_STRINGS[field.kind] is str:
                        value = value.decode(errors="replace")
                elif isinstance(value, np.ndarray):
                    value = value.copy()
                record[name] = value
            made = rows_of(checked, record, self._function, where, fix)
            rows.append(typed_row(made[0], self.kinds, where))
        return rows

    def name(self, index: int) -> str:
        number, row = self._place(index)
        return self.stores[number].name(row)

    def item_files(self, index: int) -> Sequence[str]:
        return [self._file(self._place(index)[0])]

    def range_files(self, start: int, stop: int) -> Sequence[str] | None:
        is_raw = all(field.encoding == "raw" for field in self.manifest.fields.values())
        if self._add is not None or not is_raw:
            return None
        first, last = self._place(start)[0], self._place(stop - 1)[0]
        return [self._file(number) for number in range(first, last + 1)]

    def _file(self, number: int) -> str:
        path = self.paths[number]
        return os.path.join(path, MANIFEST) if os.path.isdir(path) else path

    def _place(self, index: int) -> tuple[int, int]:
        """Return the number of the store that has an item, and the item's record there."""
        record = int(self._records[index])
        number = bisect_right(self.starts, record) - 1
        return number, record - self.starts[number]


@final
class _Facts:
    """What a selection may ask about the records of all stores, with their new values."""

    def __init__(self, source: StoreInput) -> None:
        self._source = source
        self._facts = [StoreFacts(store) for store in source.stores]
        self.classes: Sequence[str] = source.classes
        self.names = self._facts[0].names

    def answer(self, name: str) -> np.ndarray | None:
        source = self._source
        if name not in self.names:
            return None
        if name == RECORD and name not in source.stores[0].manifest.fields:
            return np.arange(source.starts[-1])
        columns: list[Any] = [facts.answer(name) for facts in self._facts]
        if name == LABEL:
            columns = [source.renumbered(own, number) for number, own in enumerate(columns)]
        column = np.concatenate(columns)
        if source.new_values is not None and name in source.new_values.values:
            values = source.new_values.values[name]
            if isinstance(values, list):
                values = [text.tobytes().decode() for text in values]
            column[source.new_values.records] = values
        return column


def _text(manifest: Manifest) -> str:
    return ", ".join(
        f"{name} {field.encoding} {field.dtype} {list(field.shape)} ({field.kind})"
        for name, field in manifest.fields.items()
    )


def read_new_values(path: str, manifest: Manifest, keys: Iterable[Sequence[str]]) -> NewValues:
    """Read a table whose column ``key`` or ``index`` names the records that get new values.

    ``keys`` are those of all records of ``manifest``, in order, block by block. DataError D253 for
    a column or a cell that does not fit, D161 for no class, D254 for a row that names no record,
    several, or one that another row names.
    """
    names, lines = read_table(path)
    fields = manifest.fields

    def refuse(row: int, what: str, fix: str, number: int = 253) -> NoReturn:
        raise DataError(number, f"{path}: line {lines[row].number}", what, fix)

    naming = [name for name in names if name in NAMING]
    if len(naming) != 1 or len(names) == 1 or len(set(names)) != len(names):
        what = f"its header is {','.join(names)[:200]!r}"
        fix = "give it a column key or index, and one for each field, as in 'key,label'"
        raise DataError(253, path, what, fix)
    for row, line in enumerate(lines):
        if len(line.cells) != len(names):
            refuse(
                row, f"has {len(line.cells)} columns, its header {len(names)}", "correct the row"
            )
    cells = zip(*(line.cells for line in lines), strict=True)
    columns = dict(zip(names, map(list, cells), strict=True))
    sha256 = hashlib.sha256(repr(columns).encode(errors="surrogatepass")).hexdigest()
    known = [own for own, field in fields.items() if is_number(field) or field.kind == "text"]
    for name in columns.keys() - {*known, naming[0]}:
        what = f"its column {name} is not a field with one number or text per record"
        fix = f"choose from {listed(known)}; input.add=MODULE.FUNCTION makes new fields"
        raise DataError(253, path, what, fix)
    named = columns.pop(naming[0])
    kind, fix = "key", "correct it, or name records by their numbers in a column index"
    if naming == ["index"]:
        kind, fix = "number", f"give 0 to {manifest.num_records - 1}"
        keys = [list(map(str, range(manifest.num_records)))]
    wanted = set(named)
    numbers: dict[str, int] = {}  # of the records that are named, by what names them
    for number, key in enumerate(chain.from_iterable(keys)):
        if key in wanted and numbers.setdefault(key, number) != number:
            what = f"names {key[:100]!r}, the key of records {numbers[key]} and {number}"
            refuse(named.index(key), what, fix, 254)
    rows: dict[int, int] = {}  # by record
    for row, cell in enumerate(named):
        if cell not in numbers:
            refuse(row, f"{cell[:100]!r} is not the {kind} of a record", fix, 254)
        if rows.setdefault(numbers[cell], row) != row:
            what = f"names the record {cell[:100]!r} again"
            refuse(row, what, "keep one row for each record", 254)
    records = np.array(sorted(rows), np.int64)
    values: contract.Records = {}
    classes = {name: number for number, name in enumerate(manifest.classes)}
    for name, column in columns.items():
        field, made = fields[name], list[Any]()
        for row in (rows[record] for record in records.tolist()):
            cell = column[row]
            try:
                made.append(_value(cell, field, classes if name == LABEL else {}))
            except LookupError:
                what = f"{cell[:40]!r} is neither a class of the stores nor the number of one"
                fix = f"choose from {listed(manifest.classes)}; "
                refuse(row, what, fix + "for a new class, add a store that has it", 161)
            except (ValueError, ArithmeticError):
                kind = "UTF-8 text" if field.kind == "text" else field.dtype
                refuse(row, f"{cell[:40]!r} is not {kind}", f"correct the column {name}")
        values[name] = made if field.kind == "text" else np.array(made, field.dtype)
    return NewValues(records, values, sha256)


def _value(cell: str, field: Field, classes: Mapping[str, int]) -> Any:
    """Return a cell as a writer takes it. LookupError for no class; ValueError, ArithmeticError."""
    if classes:
        number = classes.get(cell, -1)
        if number < 0 and INTEGER.fullmatch(cell.strip()):
            number = int(cell.strip()[:20])
        if not 0 <= number < len(classes):
            raise LookupError
        return number
    if field.kind == "text":
        return np.frombuffer(cell.encode(), np.uint8)
    cell, dtype = cell.strip().lower(), np.dtype(field.dtype)
    if dtype.kind == "b":
        return np.array(["false", "true", "0", "1"].index(cell) % 2, bool)
    if not NUMBER.fullmatch(cell):  # NumPy would read 1_2 as 12
        raise ValueError
    with np.errstate(over="raise"):
        return np.array(cell).astype(dtype)
