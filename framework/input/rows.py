"""What importers share: items that become rows, and rows that become the records of a store.

A new importer is a subclass of ``RowInput``, which lists its items and reads one of them, or of
``ColumnInput``, which gives an array for each field.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from framework.contracts.records import Chunk, Field, Manifest, Records
from framework.errors import ConfigError, DataError
from framework.image.decode import BadImage, num_channels
from framework.input.array_values import DTYPES, native
from framework.input.label import numbered_classes

Row = dict[str, Any]  # one record: a field is ``bytes`` (an image file) or a NumPy array
TRIES = 100  # bad items before the error of the first one is raised


class RowInput(ABC):
    """A RecordInput whose items are one row each. The first readable row decides the fields."""

    @abstractmethod
    def outline(self) -> Manifest:
        """Return the manifest without fields."""

    @abstractmethod
    def row(self, index: int) -> Row: ...

    @abstractmethod
    def key(self, index: int) -> str: ...

    @abstractmethod
    def name(self, index: int) -> str: ...

    @cached_property
    def manifest(self) -> Manifest:
        outline = self.outline()
        count = outline.num_records
        fields = first_fields(count, lambda index: [self.row(index)], self.name)
        return replace(outline, fields=fields)

    def read(self, start: int, stop: int) -> Chunk:
        rows = [self.row(index) for index in range(start, stop)]
        keys = [self.key(index) for index in range(start, stop)]
        return chunk_of(rows, keys, self.manifest.fields, lambda number: self.name(start + number))


class ColumnInput(ABC):
    """A RecordInput of arrays, whose first dimension is the records. Keys are their numbers.

    An integer array ``label`` numbers the classes.
    """

    path: str
    classes: Sequence[str] | None
    kind: ClassVar[str]  # for the manifest's source

    @abstractmethod
    def load(self) -> dict[str, Any]:
        """Return objects with shape and dtype that give their rows, by field."""

    def __getstate__(self) -> dict[str, Any]:
        # Another process reads the files itself.
        return {name: v for name, v in self.__dict__.items() if name not in ("arrays", "manifest")}

    @cached_property
    def arrays(self) -> dict[str, Any]:
        return self.load()

    @cached_property
    def manifest(self) -> Manifest:
        lengths = {name: len(array) for name, array in self.arrays.items()}
        count = check_same_length(self.path, lengths)
        fields = {
            name: Field(array.dtype.name, array.shape[1:]) for name, array in self.arrays.items()
        }
        return Manifest(count, fields, self._class_names(), source=f"{self.kind} {self.path}")

    def _class_names(self) -> list[str]:
        label = self.arrays.get("label")
        if label is None or label.ndim != 1 or label.dtype.kind not in "iu":
            return []
        labels = label[:]
        if labels.min() < 0:
            return []
        return numbered_classes(int(labels.max()), self.classes, self.path)

    def read(self, start: int, stop: int) -> Chunk:
        records = {name: native(array[start:stop]) for name, array in self.arrays.items()}
        return Chunk(records, [str(number) for number in range(start, stop)])

    def name(self, index: int) -> str:
        return f"{self.path}: record {index}"


def check_same_length(path: str, lengths: dict[str, int]) -> int:
    """Return the length of all arrays. DataError D111 if lengths differ or are 0."""
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        fix = "give arrays of one length, at least 1, or choose some with input.fields"
        raise DataError(111, path, f"its arrays have {lengths} records", fix)
    return next(iter(lengths.values()))


def field_texts(option: str, given: Any, example: str) -> dict[str, str]:
    """Return an option of the input that maps fields to texts. ConfigError C162 if it does not."""
    if not isinstance(given, Mapping) or not given:
        where = f"input.{option} = {given}"
        raise ConfigError(162, where, "must map fields to texts", f"give input.{option}={example}")
    return {str(field): str(text) for field, text in given.items()}


def field_of(value: Any, where: str) -> Field:
    """Return the field of a value.

    Raises:
        DataError: D106 for bytes that are not an image, D167 for a value that no store holds.
    """
    if isinstance(value, bytes):
        try:
            return Field("uint8", (num_channels(value), None, None), "image")
        except (BadImage, ValueError) as error:
            what = f"not a readable image ({error})"
            raise DataError(106, where, what, "correct or remove it") from error
    kind = value.dtype.name if isinstance(value, np.ndarray) else type(value).__name__
    if not isinstance(value, np.ndarray) or kind not in DTYPES:
        fix = "give arrays of plain numbers, or an image file's bytes"
        raise DataError(167, where, f"is {kind}", fix)
    return Field(kind, value.shape)


def first_fields(
    num_items: int, rows: Callable[[int], Sequence[Row]], name: Callable[[int], str]
) -> dict[str, Field]:
    """Return the fields of the first record of the first readable item.

    Raises:
        DataError: That of the first bad item, if no item is readable.
    """
    errors: list[DataError] = []
    for index in range(num_items):
        try:
            for row in rows(index)[:1]:
                where = name(index)
                return {field: field_of(value, f"{where}: {field}") for field, value in row.items()}
        except DataError as error:
            errors.append(error)
            if len(errors) == TRIES:
                break
    if errors:
        raise errors[0]
    raise DataError(110, name(0), "no item gives a record", "look at what is packed")


def chunk_of(
    rows: Sequence[Row], keys: list[str], fields: Mapping[str, Field], name: Callable[[int], str]
) -> Chunk:
    """Return rows as a chunk. ``name(i)`` is the name of row ``i`` in an error.

    Raises:
        DataError: D167 for a row that does not have the ``fields``.
    """
    for number, row in enumerate(rows):
        if row.keys() != fields.keys():
            own, first = ", ".join(sorted(row)), ", ".join(sorted(fields))
            what = f"has the fields {own}, the first record {first}"
            raise DataError(167, name(number), what, "give every record the same fields")
    records: Records = {}
    for field_name, field in fields.items():
        values = [row[field_name] for row in rows]
        for number, value in enumerate(values):
            _check(value, field, f"{name(number)}: {field_name}")
        records[field_name] = values
        if field.encoding != "image":
            empty = np.empty((0, *(size or 0 for size in field.shape)), field.dtype)
            records[field_name] = np.stack(values) if values else empty
    return Chunk(records, keys)


def _check(value: Any, field: Field, where: str) -> None:
    is_image = field.encoding == "image"
    if is_image and isinstance(value, bytes):
        return
    given = type(value).__name__
    if isinstance(value, np.ndarray):
        given = f"{value.dtype} {value.shape}"
    wanted = "an image file's bytes" if is_image else f"{field.dtype} {tuple(field.shape)}"
    if given != wanted:
        what = f"is {given}, the first record's is {wanted}"
        raise DataError(167, where, what, "give every record the same shape and type")
