"""What inputs share: they turn items, such as files, into rows, and rows into a store's records.

A new input is a subclass of ``RowInput``, which reads one item, or of ``ColumnInput``.
"""

import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from framework.contracts import records as contract
from framework.contracts.class_labels import IGNORE_INDEX, is_class_number
from framework.contracts.records import LABEL, Chunk, Field, Manifest
from framework.errors import ConfigError, DataError, listed
from framework.media.sound_video import is_sound, video_format
from framework.store import files, folder_store, foreign

# One record before it is stored. A field is ``bytes`` (an image file), ``str`` or a NumPy array.
Row = dict[str, Any]
MAX_BAD_ITEMS = 100  # Give up after this many bad items, and raise the first error.
VIDEO = Field("uint8", (None, None, None, 3), "frames")


class RowInput(contract.InputTraits, ABC):
    """A RecordInput that makes rows from items, and records from rows.

    The first readable row decides the fields, and ``kinds`` those that values alone do not tell.
    """

    path: Any  # of the data, for names of items
    kinds: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def described(self) -> Manifest:
        """Return the number of items, the classes, the source, and the fields if they are known."""

    def row(self, index: int) -> Row:
        """Read an item that is one record."""
        raise NotImplementedError

    def rows(self, index: int) -> Sequence[tuple[str, Row]]:
        """Read an item. Return the key and the row of each record."""
        return [(self.key(index), self.row(index))]

    def name(self, index: int) -> str:
        return f"{self.path}: {self.key(index)}"

    @cached_property
    def all_kinds(self) -> Mapping[str, str]:
        """``kinds``, and those that the input knows by itself."""
        return dict(self.kinds)

    @cached_property
    def manifest(self) -> Manifest:
        manifest, kinds = self.described(), self.all_kinds

        def rows(index: int) -> list[Row]:
            name = self.name(index)
            return [typed_row(row, kinds, name) for _, row in self.rows(index)]

        fields = manifest.fields or first_fields(manifest.num_records, rows, self.name, kinds)
        return replace(manifest, fields=fields)

    def read(self, start: int, stop: int) -> Chunk:
        fields, kinds = self.manifest.fields, self.all_kinds
        rows: list[Row] = []
        keys: list[str] = []
        names: list[str] = []
        for index in range(start, stop):
            name, keyed = self.name(index), self.rows(index)
            own = [key for key, _ in keyed]
            rows += [typed_row(row, kinds, name) for _, row in keyed]
            keys += own
            names += [name] if len(keyed) == 1 else own
        return chunk_of(rows, keys, fields, names)


def typed_row(row: Row, kinds: Mapping[str, str], where: str) -> Row:
    """Return the row with fields as ``input.kinds`` says. DataError D167 for a misfit."""
    typed = dict(row)
    for name, kind in kinds.items():
        if name in row:
            typed[name] = foreign.of_kind(row[name], kind, f"{where}: {name}")
    return typed


class ColumnInput(contract.InputTraits, ABC):
    """A RecordInput of one array per field, whose first dimension counts the records.

    An array ``label`` of whole numbers or bool, [N] or [N, 1], has class numbers if none is
    negative.
    """

    path: str
    classes: Sequence[str] | None
    kind: ClassVar[str]  # for the manifest's source

    @cached_property
    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """An array for each field."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in self.__dict__.items() if name not in ("arrays", "manifest")}

    @cached_property
    def manifest(self) -> Manifest:
        arrays = self.arrays
        count = check_same_length(self.path, {name: len(array) for name, array in arrays.items()})
        fields = {name: Field(array.dtype.name, array.shape[1:]) for name, array in arrays.items()}
        largest = -1
        label = arrays.get(LABEL)
        if label is not None and is_class_number(label.dtype.kind, label.shape[1:]):
            largest = largest_label(label[:])
        classes = foreign.numbered_classes(largest, self.classes, self.path)
        return Manifest(count, fields, classes, source=f"{self.kind} {self.path}")

    def read(self, start: int, stop: int) -> Chunk:
        records = {  # copies: a part of a memory map may be read-only, and not aligned
            name: np.array(array[start:stop], array.dtype.newbyteorder("="), order="C")
            for name, array in self.arrays.items()
        }
        return Chunk(records, contract.NumberKeys(start, stop))

    def name(self, index: int) -> str:
        return f"{self.path}: record {index}"

    def range_files(self, start: int, stop: int) -> Sequence[str] | None:
        return self.item_files(start)


def largest_label(labels: np.ndarray) -> int:
    """Return the largest label, of those that count; -1 without any, or if one is negative."""
    counted = labels[labels != IGNORE_INDEX]
    if not counted.size or counted.min() < 0:
        return -1
    return int(counted.max())


def check_same_length(path: str, lengths: dict[str, int]) -> int:
    """Return the length of all arrays. DataError D111 if lengths differ or are 0."""
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        now = ", ".join(f"{name}: {length}" for name, length in lengths.items()) or "no array"
        what = f"must have the same number of records in each array, at least 1 (now {now})"
        raise DataError(111, path, what, "correct the arrays, or choose some with input.fields")
    return next(iter(lengths.values()))


def text_by_field(option: str, given: Any, example: str) -> dict[str, str]:
    """Return an option of the input that maps fields to texts. ConfigError C162 for another."""
    if not isinstance(given, Mapping) or not given:
        where = f"input.{option} = {given}"
        what = "must map at least one field to a name"
        raise ConfigError(162, where, what, f"give input.{option}={example}")
    return {str(field): str(text) for field, text in given.items()}


def places_of(
    path: str, names: Sequence[str], pattern: re.Pattern[str], key: Callable[..., Any]
) -> dict[Any, int]:
    """Return the places of the names that a pattern matches, by the ``key`` of its groups.

    DataError D163 for two names of one key.
    """
    places: dict[Any, int] = {}
    for place, match in enumerate(map(pattern.fullmatch, names)):
        if match is None:
            continue
        own = key(*match.groups())
        if own in places:
            what = f"{names[places[own]]!r} and {names[place]!r} are one record"
            raise DataError(163, path, what, "remove one of them, or narrow input.fields")
        places[own] = place
    return places


def shared_names(path: str, matches: Mapping[str, Mapping[Any, Any]]) -> list[Any]:
    """Return the names that each field has, in order. DataError D160 if a field lacks one."""
    first, *others = matches.values()
    if alone := set(first).union(*others) - set(first).intersection(*others):
        what = f"{len(alone)} records lack a field: {listed(sorted(map(str, alone)))}"
        raise DataError(160, path, what, "correct input.fields, or complete the file")
    return list(first)


def read_file(path: str) -> bytes:
    """Return a file's bytes. DataError D101 if it cannot be read, or is a pipe or a device."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DataError(101, path, "not a regular file", "correct or remove it")
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise files.unreadable(path, error) from error


def field_of(
    value: Any, where: str, count: int = 1, read: Callable[[int], Any] | None = None
) -> Field:
    """Return the field of a value. A ``str`` is a text, ``bytes`` are a file.

    An image is one of ``count`` that ``read`` returns: it is gray if a sample of them is. DataError
    D106 for bytes of no image, sound or video, D167 for what a store cannot hold.
    """
    if isinstance(value, str):
        return foreign.field_of_kind(value, "text")
    if isinstance(value, bytes):
        if is_sound(value):
            return foreign.field_of_kind(value, "audio")
        if video_format(value):
            return VIDEO
        name = where.rpartition(": ")[2]
        fix = f"correct or remove it; if it is none, add 'input.kinds={{{name}: bytes}}'"
        return folder_store.image_field(where, count, read or (lambda _: value), fix=fix)
    kind = getattr(value, "dtype", type(value).__name__)
    if not isinstance(value, np.ndarray) or value.dtype.name not in foreign.DTYPES:
        fix = "give arrays of plain numbers, a text, or an image file's bytes"
        raise DataError(167, where, f"has the type {kind}, which a store cannot hold", fix)
    return Field(value.dtype.name, value.shape)


def first_fields(
    num_items: int,
    rows: Callable[[int], Sequence[Row]],
    name: Callable[[int], str],
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Field]:
    """Return the fields of the first record of the first readable item.

    The first error if all, or ``MAX_BAD_ITEMS``, items are bad; D110 if no item gives a record.
    """

    def value_of(first: int, field: str, number: int) -> Any:
        return next(iter(rows(first + number)), {}).get(field)

    errors: list[DataError] = []
    for index in range(num_items):
        fields: dict[str, Field] = {}
        try:
            row: Row = next(iter(rows(index)), {})
            for field, value in row.items():
                if field in kinds:
                    fields[field] = foreign.field_of_kind(value, kinds[field])
                    continue
                read = partial(value_of, index, field)
                fields[field] = field_of(value, f"{name(index)}: {field}", num_items - index, read)
        except DataError as error:
            errors.append(error)
            if len(errors) == MAX_BAD_ITEMS:
                break
        else:
            if fields:
                foreign.check_present(kinds, fields)
                return fields
    if errors:
        raise errors[0]
    raise DataError(110, name(0), "no item gives a record", "check the items, or the function")


def chunk_of(
    rows: Sequence[Row], keys: Sequence[str], fields: Mapping[str, Field], names: Sequence[str]
) -> Chunk:
    """Return rows as a chunk. DataError D167, with its name, for a row that does not fit."""
    for number, row in enumerate(rows):
        if row.keys() != fields.keys():
            own, first = ", ".join(sorted(row)), ", ".join(sorted(fields))
            what = f"has the fields {own}, but the first record has {first}"
            raise DataError(167, names[number], what, "give every record the same fields")
    records: contract.Records = {}
    for field_name, field in fields.items():
        values = [row[field_name] for row in rows]
        kind, rest = foreign.OF_STRINGS.get(field.kind), field.shape[1:]
        if field.encoding in ("image", "frames"):
            kind = bytes
        for number, value in enumerate(values):
            is_array = isinstance(value, np.ndarray)
            has_rows = is_array and value.dtype == field.dtype and value.shape[1:] == rest
            is_ragged = field.encoding == "ragged" and has_rows and value.ndim
            fits = is_ragged or (has_rows and value.shape == field.shape)
            if kind is not None:
                fits = isinstance(value, kind)
            if fits:
                continue
            wanted = f"{field.dtype} {field.shape}"
            fix = "give every record the same shape and type"
            if kind is not None:
                wanted = f"the kind {field.kind}"
            elif has_rows:
                # () and (n,) are alike: a single number beside a list of numbers is a row, too.
                kinds = f"'input.kinds={{{field_name}: ragged}}'"
                fix = f"if its number of rows may differ, add {kinds}"
            if isinstance(value, str) or field.kind == "text":
                fix = f"if all of them are texts, add 'input.kinds={{{field_name}: text}}'"
            given = type(value).__name__
            if is_array:
                given = f"{value.dtype} {value.shape}"
            what = f"is {given}, but the first record has {wanted}"
            raise DataError(167, f"{names[number]}: {field_name}", what, fix)
        records[field_name] = values
        if field.kind in foreign.OF_STRINGS:
            strings = (value.encode() if isinstance(value, str) else value for value in values)
            records[field_name] = [np.frombuffer(own, np.uint8) for own in strings]
        elif field.encoding == "raw" and values:
            records[field_name] = np.stack(values)
        elif field.encoding == "raw":
            records[field_name] = np.empty((0, *(size or 0 for size in field.shape)), field.dtype)
    return Chunk(records, keys)
