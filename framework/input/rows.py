"""What inputs share: they turn items into rows, and rows into the records of a store.

An item is what an input lists: a file or a line, for example. A row is one record before it is
stored. A new input is a subclass of ``RowInput``, which lists its items and reads one of them, or
of ``ColumnInput``, which gives an array for each field.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from framework.contracts.class_labels import IGNORE_INDEX, is_class_number
from framework.contracts.records import Chunk, Field, Manifest, NumberKeys, Records
from framework.errors import ConfigError, DataError
from framework.media.decode import BadImage, num_channels, shared_channels
from framework.media.sound_file import is_sound
from framework.media.video_file import is_video
from framework.store.array_values import DTYPES, native
from framework.store.kinds import OF_STRINGS, as_rows, check_present, field_of_kind, of_kind
from framework.store.label import check_classes, numbered_classes

# One record before it is stored. A field is ``bytes`` (an image file), ``str`` or a NumPy array.
Row = dict[str, Any]
BLOCK_VALUES = 1 << 18  # labels that are read at once
MAX_BAD_ITEMS = 100  # Give up after this many bad items, and raise the first error.


class RowInput(ABC):
    """A RecordInput that makes one row from each item.

    The first readable row decides the fields. ``kinds`` says what they are, if their values alone
    do not, such as ``ragged``.
    """

    kinds: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def manifest_without_fields(self) -> Manifest:
        """Return the number of records, the classes and the source."""

    @abstractmethod
    def row(self, index: int) -> Row:
        """Read an item."""

    @abstractmethod
    def key(self, index: int) -> str:
        """Return the key that the store keeps for the record of an item."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return what an error calls an item, for example its path."""

    @cached_property
    def manifest(self) -> Manifest:
        manifest = self.manifest_without_fields()
        count = manifest.num_records
        kinds = self.all_kinds()
        fields = first_fields(count, lambda index: [self._row(index)], self.name, kinds)
        return replace(manifest, fields=fields)

    def read(self, start: int, stop: int) -> Chunk:
        rows = [self._row(index) for index in range(start, stop)]
        keys = [self.key(index) for index in range(start, stop)]
        return chunk_of(rows, keys, self.manifest.fields, lambda number: self.name(start + number))

    def _row(self, index: int) -> Row:
        return typed_row(self.row(index), self.all_kinds(), self.name(index))

    def all_kinds(self) -> Mapping[str, str]:
        """Return ``kinds``, and those that the input knows by itself."""
        return self.kinds


def typed_row(row: Row, kinds: Mapping[str, str], where: str) -> Row:
    """Return the row with fields as ``input.kinds`` says. DataError D167 for a misfit."""
    typed = {
        name: of_kind(row[name], kind, f"{where}: {name}")
        for name, kind in kinds.items()
        if name in row
    }
    return {**row, **typed}


class ColumnInput(ABC):
    """A RecordInput of one array per field. The first dimension of each array counts the records.

    The key of a record is its number. An array ``label`` of whole numbers or bool, [N] or [N, 1],
    contains class numbers if none is negative.
    """

    path: str
    classes: Sequence[str] | None
    kind: ClassVar[str]  # for the manifest's source

    @abstractmethod
    def load(self) -> dict[str, Any]:
        """Return an array, or an object that can be sliced like one, for each field."""

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
        if label is not None and is_class_number(label.dtype.kind, label.shape[1:]):
            least, largest = extremes(label[part] for part in ranges(len(label), BLOCK_VALUES))
            if least >= 0:
                return numbered_classes(largest, self.classes, self.path)
        return check_classes((), self.classes, self.path)

    def read(self, start: int, stop: int) -> Chunk:
        records = {name: native(array[start:stop]) for name, array in self.arrays.items()}
        return Chunk(records, NumberKeys(start, stop))

    def name(self, index: int) -> str:
        return f"{self.path}: record {index}"

    @abstractmethod
    def item_files(self, index: int) -> Sequence[str]:
        """Return the files of all arrays."""

    def range_files(self, start: int, stop: int) -> Sequence[str] | None:
        return self.item_files(start)


def extremes(parts: Iterable[np.ndarray]) -> tuple[int, int]:
    """Return the least and the largest of the labels that count; -1 for both without any."""
    counted = [part[part != IGNORE_INDEX] for part in parts]
    pairs = [(int(part.min()), int(part.max())) for part in counted if part.size]
    if not pairs:
        return -1, -1
    least, largest = zip(*pairs, strict=True)
    return min(least), max(largest)


def ranges(count: int, size: int) -> Iterator[slice]:
    """Yield slices of ``size`` that hold ``count`` values."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def check_same_length(path: str, lengths: dict[str, int]) -> int:
    """Return the length of all arrays. DataError D111 if lengths differ or are 0."""
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        now = ", ".join(f"{name}: {length}" for name, length in lengths.items()) or "no array"
        what = f"must have the same number of records in each array, at least 1 (now {now})"
        raise DataError(111, path, what, "correct the arrays, or choose some with input.fields")
    return next(iter(lengths.values()))


def text_by_field(option: str, given: Any, example: str) -> dict[str, str]:
    """Check and return an option of the input that maps fields to texts.

    Raises:
        ConfigError: C162 if it does not.
    """
    if not isinstance(given, Mapping) or not given:
        where = f"input.{option} = {given}"
        raise ConfigError(
            162, where, "must map at least one field to a name", f"give input.{option}={example}"
        )
    return {str(field): str(text) for field, text in given.items()}


def field_of(value: Any, where: str) -> Field:
    """Return the field of a value. A ``str`` is a text, ``bytes`` are a file.

    Raises:
        DataError: D106 for bytes that are no image, sound or video, D167 for a type that a store
            cannot hold.
    """
    if isinstance(value, str):
        return field_of_kind(value, "text")
    if isinstance(value, bytes) and is_sound(value):
        return field_of_kind(value, "audio")
    if isinstance(value, bytes) and is_video(value):
        return Field("uint8", (None, None, None, 3), "frames")
    if isinstance(value, bytes):
        try:
            return Field("uint8", (num_channels(value), None, None), "image")
        except (BadImage, ValueError) as error:
            what = f"not a readable image ({error})"
            name = where.rpartition(": ")[2]
            fix = f"correct or remove it; if it is none, add 'input.kinds={{{name}: bytes}}'"
            raise DataError(106, where, what, fix) from error
    kind = value.dtype.name if isinstance(value, np.ndarray) else type(value).__name__
    if not isinstance(value, np.ndarray) or kind not in DTYPES:
        fix = "give arrays of plain numbers, a text, or an image file's bytes"
        raise DataError(167, where, f"has the type {kind}, which a store cannot hold", fix)
    return Field(kind, value.shape)


def first_fields(
    num_items: int,
    rows: Callable[[int], Sequence[Row]],
    name: Callable[[int], str],
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Field]:
    """Return the fields of the first record of the first readable item.

    ``kinds`` says what fields are, if their values alone do not. An image field is gray if this
    image and a sample of the others are.

    Raises:
        DataError: The error of the first bad item, if no item gives a record or ``MAX_BAD_ITEMS``
            are bad before one does. D110 if no item gives a record and none is bad.
    """
    errors: list[DataError] = []
    for index in range(num_items):
        try:
            row = next(iter(rows(index)), None)
            if row is not None:
                fields = _fields_of(row, kinds, name(index))
                return _in_color(fields, row, rows, range(index, num_items))
        except DataError as error:
            errors.append(error)
            if len(errors) == MAX_BAD_ITEMS:
                break
    if errors:
        raise errors[0]
    fix = "check the items, and the records that the function returns for them"
    raise DataError(110, name(0), "no item gives a record", fix)


def _fields_of(row: Row, kinds: Mapping[str, str], where: str) -> dict[str, Field]:
    check_present(kinds, row)
    fields: dict[str, Field] = {}
    for name, value in row.items():
        if name in kinds:
            fields[name] = field_of_kind(value, kinds[name])
        else:
            fields[name] = field_of(value, f"{where}: {name}")
    return fields


def _in_color(
    fields: dict[str, Field], first: Row, rows: Callable[[int], Sequence[Row]], items: range
) -> dict[str, Field]:
    """Return the fields, with the channels of images as a sample of the items has them."""

    @cache
    def first_row(item: int) -> Row:
        return first if item == items.start else next(iter(rows(item)), {})

    def image(name: str, number: int) -> Any:
        value = first_row(items[number]).get(name)
        return value if isinstance(value, bytes) else b""

    for name, field in fields.items():
        if field.encoding == "image":
            channels = shared_channels(len(items), partial(image, name))
            fields[name] = replace(field, shape=(channels, None, None))
    return fields


def _has_other_length(value: Any, field: Field) -> bool:
    """Return whether an array differs from the field in nothing but its number of rows.

    A single number beside a list of numbers does so.
    """
    if not isinstance(value, np.ndarray) or value.dtype != field.dtype:
        return False
    if not value.ndim or not field.shape:
        return value.ndim + len(field.shape) == 1
    return value.shape[1:] == tuple(field.shape[1:]) and len(value) != field.shape[0]


def chunk_of(
    rows: Sequence[Row],
    keys: Sequence[str],
    fields: Mapping[str, Field],
    name: Callable[[int], str],
) -> Chunk:
    """Return rows as a chunk. An error calls row ``i`` ``name(i)``.

    Raises:
        DataError: D167 for a row with other fields, or with a value of another shape or dtype.
    """
    for number, row in enumerate(rows):
        if row.keys() != fields.keys():
            own, first = ", ".join(sorted(row)), ", ".join(sorted(fields))
            what = f"has the fields {own}, but the first record has {first}"
            raise DataError(167, name(number), what, "give every record the same fields")
    records: Records = {}
    for field_name, field in fields.items():
        values = [row[field_name] for row in rows]
        for number, value in enumerate(values):
            _check_value(value, field, f"{name(number)}: {field_name}")
        records[field_name] = values
        if field.kind in OF_STRINGS:
            records[field_name] = list(map(as_rows, values))
        elif field.encoding == "raw":
            empty = np.empty((0, *(size or 0 for size in field.shape)), field.dtype)
            records[field_name] = np.stack(values) if values else empty
    return Chunk(records, keys)


def _check_value(value: Any, field: Field, where: str) -> None:
    shape = tuple(field.shape)
    wanted = f"{field.dtype} {shape}"
    if field.encoding in ("image", "frames"):
        wanted = "an image file's bytes"
        if field.kind == "video":
            wanted = "a video file's bytes"
        fits = isinstance(value, bytes)
    elif field.kind in OF_STRINGS:
        wanted = f"a {OF_STRINGS[field.kind].__name__}"
        fits = isinstance(value, OF_STRINGS[field.kind])
    elif field.encoding == "ragged":
        fits = isinstance(value, np.ndarray) and value.dtype == field.dtype
        fits = fits and value.ndim == len(shape) and value.shape[1:] == shape[1:]
    else:
        fits = isinstance(value, np.ndarray) and value.dtype == field.dtype and value.shape == shape
    if fits:
        return
    given = type(value).__name__
    if isinstance(value, np.ndarray):
        given = f"{value.dtype} {value.shape}"
    what = f"is {given}, but the first record has {wanted}"
    fix = "give every record the same shape and type"
    if isinstance(value, str) or field.kind == "text":
        name = where.rpartition(": ")[2]
        fix = f"if all of them are texts, add 'input.kinds={{{name}: text}}'"
    if isinstance(value, np.ndarray) and _has_other_length(value, field):
        name = where.rpartition(": ")[2]
        fix = f"if its number of rows may differ, add 'input.kinds={{{name}: ragged}}'"
    raise DataError(167, where, what, fix)
