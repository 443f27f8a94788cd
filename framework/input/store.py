"""Stores that are packed already: several into one, or with other records, values and fields."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import FunctionType
from typing import Any, final

import numpy as np
import torch

from framework.contracts.records import LABEL, Chunk, Field, Manifest, RecordStore
from framework.errors import DataError
from framework.input.function import rows_of
from framework.input.rows import Row, chunk_of, first_fields, typed_row
from framework.input.value_table import NewValues, ValueTable
from framework.order.select import ExpressionWords, selected
from framework.pack.jobs import joined
from framework.pack.join import as_written, keys_of
from framework.store.columns import RECORD, StoreFacts
from framework.store.kinds import OF_STRINGS
from framework.store.open_store import MANIFEST, open_store
from framework.system.code_digest import CodeDigest, digest_of

KEY = "key"  # of a record, for the user's function
BLOCK_KEYS = 1 << 16  # looked up at once
WORDS = ExpressionWords(
    "input.select",
    "record",
    "compare fields, as in 'input.select=label in [3, 5] and width >= 224'",
)


@final
class StoreInput:
    """The records of one store or several, in order, under their own keys.

    The fields of all stores must agree. Classes are united by name, in the order in which they
    come first, and labels are renumbered. Records are read by range. A record that does not match
    its CRC32 is an error, so that damage is not packed again. ``conf/input/store.yaml`` describes
    the options, which work in their order: ``select`` sees the values that ``relabel`` gives, and
    ``add`` the records that ``select`` leaves.
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
        self._code = CodeDigest()
        if add is not None:
            named: Any = add
            if isinstance(add, partial):
                # Hydra's partial asks for permission at each call, which takes 80 us
                self._add = partial(add.func, *add.args, **add.keywords)
                named = add.func
            if not isinstance(named, type | FunctionType):
                named = type(named)
            self._function = f"{named.__module__}.{named.__qualname__}"
            self._code = digest_of(self._add, (named.__module__.partition(".")[0],))

    @cached_property
    def stores(self) -> list[RecordStore]:
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
        if self._records is not None:
            options["select"] = self.select
            manifest = replace(manifest, num_records=len(self._records))
        if self._add is not None:
            options["add"] = self._function
        return replace(manifest, fields={**manifest.fields, **self._new_fields}, options=options)

    @cached_property
    def _stored(self) -> Manifest:
        """Describes the records of all stores as they are."""
        first, *others = (store.manifest for store in self.stores)
        for path, other in zip(self.paths[1:], others, strict=True):
            _check_alike(self.paths[0], first, path, other)
        if not self.starts[-1]:
            raise DataError(110, self.paths[0], "no record", "give stores that hold some")
        label = first.fields.get(LABEL)
        if others and label and label.dtype in ("uint8", "int8"):
            num_classes = len(self.classes)
            if num_classes > np.iinfo(label.dtype).max + 1:
                what = f"{num_classes} classes do not fit {label.dtype}"
                raise DataError(169, self.paths[0], what, "pack wider labels first")
        options, source = first.options, first.source
        if any(other.options != options for other in others):
            options = {}
        if others:
            source = f"stores {', '.join(self.paths)}"
        return Manifest(self.starts[-1], first.fields, self.classes, source=source, options=options)

    @cached_property
    def classes(self) -> list[str]:
        return list(dict.fromkeys(name for store in self.stores for name in store.manifest.classes))

    @cached_property
    def numbers(self) -> list[np.ndarray]:
        """The new number of each class, for each store."""
        new = {name: number for number, name in enumerate(self.classes)}
        return [
            np.array([new[name] for name in store.manifest.classes], np.int64)
            for store in self.stores
        ]

    @cached_property
    def new_values(self) -> NewValues | None:
        if self.relabel is None:
            return None
        return ValueTable(self.relabel).new_values(self._stored, self._keys())

    def _keys(self) -> Iterator[Sequence[str]]:
        for store in self.stores:
            for indices in torch.arange(store.manifest.num_records).split(BLOCK_KEYS):
                yield keys_of(store, indices)

    @cached_property
    def _records(self) -> np.ndarray | None:
        """The numbers of the selected records in all stores, ascending: int64 [n]; None: all."""
        if self.select is None:
            return None
        return selected(self.select, _Facts(self), self._stored.num_records, WORDS)

    @cached_property
    def _new_fields(self) -> dict[str, Field]:
        """The fields that ``add`` makes. DataError D255 for one that the stores have."""
        if self._add is None:
            return {}
        own = self._stored.fields
        count = self._stored.num_records if self._records is None else len(self._records)
        kinds = {name: kind for name, kind in self.kinds.items() if name not in own}

        def rows(index: int) -> list[Row]:
            return self._added(self._read_stored(index, index + 1), index)

        fields = first_fields(count, rows, self.name, kinds)
        if present := [name for name in fields if name in own]:
            what = f"makes the field {present[0]}, which the records have already"
            fix = "give it another name; input.relabel=TABLE replaces numbers and texts"
            raise DataError(255, f"input.add = {self._function}", what, fix)
        return fields

    def read(self, start: int, stop: int) -> Chunk:
        chunk = self._read_stored(start, stop)
        if self._add is None or not len(chunk.keys):
            return chunk
        fields = self._new_fields
        rows = self._added(chunk, start)
        new = chunk_of(rows, chunk.keys, fields, lambda place: self.name(start + place))
        return Chunk({**chunk.records, **new.records}, chunk.keys)

    def _read_stored(self, start: int, stop: int) -> Chunk:
        """Return records without the fields of ``add``."""
        numbers = np.arange(start, stop)
        if self._records is not None:
            numbers = self._records[start:stop]
        cuts = np.searchsorted(numbers, self.starts)
        parts = [
            self._read_from(number, numbers[cuts[number] : cuts[number + 1]] - first)
            for number, first in enumerate(self.starts[:-1])
            if cuts[number] < cuts[number + 1]
        ]
        chunk = joined(parts, self._stored.fields)
        if self.new_values is not None:
            self.new_values.put_into(chunk.records, numbers)
        return chunk

    def _read_from(self, number: int, rows: np.ndarray) -> Chunk:
        """Return records of store ``number``, whose ``rows`` ascend."""
        store, indices = self.stores[number], torch.from_numpy(rows)
        store.check()  # an open store stays readable after its file was replaced
        read = store.read(indices)
        if damaged := store.damaged(indices, read):
            what = "its bytes are not what their CRC32 says"
            fix = "see what else is damaged with paceline verify"
            raise DataError(166, store.name(damaged[0]), what, fix)
        records = as_written(read)
        if LABEL in records:
            records[LABEL] = self.renumbered(records[LABEL], number, rows)
        return Chunk(records, keys_of(store, indices))

    def renumbered(self, labels: Any, number: int, rows: Sequence[int] | np.ndarray) -> Any:
        """Return the labels of rows of store ``number`` as numbers of all classes.

        ``labels`` is an array, or a list of arrays if each record has several. DataError D161.
        """
        numbers = self.numbers[number]
        if len(self.stores) == 1 or not len(numbers):
            return labels
        if isinstance(labels, list):
            pairs = zip(labels, rows, strict=True)
            return [self.renumbered(array, number, [row]) for array, row in pairs]
        if ((labels < 0) | (labels >= len(numbers))).any():
            what = f"a label from this record on is none of the store's {len(numbers)} classes"
            name = self.stores[number].name(int(rows[0]))
            raise DataError(161, name, what, "correct that store")
        return numbers[labels.astype(np.int64)].astype(labels.dtype)

    def _added(self, chunk: Chunk, start: int) -> list[Row]:
        """Return what ``add`` makes of each record of a chunk, which begins at item ``start``."""
        fields = self._stored.fields
        fix = "leave the record out with input.select"
        rows: list[Row] = []
        for place, key in enumerate(chunk.keys):
            where = self.name(start + place)
            record: Row = {KEY: key}
            for name, field in fields.items():
                record[name] = _for_user(chunk.records[name][place], field)
            made = rows_of(partial(self._call, where), record, self._function, where, fix)
            rows.append(typed_row(made[0], self.kinds, where))
        return rows

    def _call(self, where: str, record: Row) -> Row:
        """Return what ``add`` makes of a record. DataError D167 if that is not a dict of fields."""
        assert self._add is not None
        made = self._add(record)
        if not isinstance(made, dict) or not made:  # pyright: ignore[reportUnnecessaryIsInstance]
            what = f"{self._function} returned {made!r}"[:200]
            fix = "return a dict with a value for each new field, as in {'score': 0.3}"
            raise DataError(167, where, what, fix)
        return made

    def name(self, index: int) -> str:
        number, row = self._place(index)
        return self.stores[number].name(row)

    def item_files(self, index: int) -> Sequence[str]:
        """Return a store's file, or the manifest with its files' checksums."""
        return [self._file(self._place(index)[0])]

    def range_files(self, start: int, stop: int) -> Sequence[str] | None:
        is_raw = all(field.encoding == "raw" for field in self.manifest.fields.values())
        if self._add is not None or not is_raw:
            return None
        first, last = self._place(start)[0], self._place(stop - 1)[0]
        return [self._file(number) for number in range(first, last + 1)]

    def code(self) -> CodeDigest:
        return self._code

    def _file(self, number: int) -> str:
        path = self.paths[number]
        return os.path.join(path, MANIFEST) if os.path.isdir(path) else path

    def _place(self, index: int) -> tuple[int, int]:
        """Return the number of the store that has an item, and the item's record there."""
        record = index if self._records is None else int(self._records[index])
        number = int(np.searchsorted(self.starts, record, side="right")) - 1
        return number, record - self.starts[number]


@final
class _Facts:
    """What a selection may ask about the records of all stores, with their new values."""

    def __init__(self, source: StoreInput) -> None:
        self._source = source
        self._facts = [StoreFacts(store) for store in source.stores]
        self.classes = source.classes
        self.names = self._facts[0].names

    def answer(self, name: str) -> np.ndarray | None:
        source = self._source
        if name not in self.names:
            return None
        if name == RECORD and name not in source.stores[0].manifest.fields:
            return np.arange(source.starts[-1])
        columns: list[Any] = [facts.answer(name) for facts in self._facts]
        if name == LABEL:
            columns = [
                source.renumbered(labels, number, range(len(labels)))
                for number, labels in enumerate(columns)
            ]
        column = np.concatenate(columns)
        new = source.new_values
        if new is not None and name in new.values:
            values = new.values[name]
            if isinstance(values, list):
                values = [text.tobytes().decode() for text in values]
            column[new.records] = values
        return column


def _for_user(value: Any, field: Field) -> Any:
    """Return a value of a record as a function may also return it, and change it as it likes."""
    string = OF_STRINGS.get(field.kind)
    if string is not None:
        data = value.tobytes()
        return data.decode(errors="replace") if string is str else data
    return value.copy() if isinstance(value, np.ndarray) else value


def _check_alike(path: str, first: Manifest, other_path: str, other: Manifest) -> None:
    """Check that two stores can be united. DataError D169."""
    if other.fields != first.fields:
        what = f"its fields {_fields_text(other)} are not {path}'s {_fields_text(first)}"
        raise DataError(169, other_path, what, "pack it with the same pack.size and encode first")
    if bool(other.classes) != bool(first.classes):
        what = f"only one of it and {path} names its classes"
        raise DataError(169, other_path, what, "pack both with classes, or both without")


def _fields_text(manifest: Manifest) -> str:
    return ", ".join(
        f"{name} {field.encoding} {field.dtype} {list(field.shape)} ({field.kind})"
        for name, field in manifest.fields.items()
    )
