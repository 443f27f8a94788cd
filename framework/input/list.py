"""A table of files, numbers, texts and labels: CSV, TSV, or Kaldi's .scp (a key, and a path)."""

import codecs
import csv
import io
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from framework.contracts.records import Manifest
from framework.errors import ConfigError, DataError, listed
from framework.input.file_items import read_file
from framework.input.rows import Row, RowInput, text_by_field
from framework.store.array_values import value_of
from framework.store.folder_store import FILES
from framework.store.foreign import NUMBER, field_name, is_quotable, number_of
from framework.store.label import (
    check_classes,
    class_in,
    class_pattern,
    label_column,
    numbered_classes,
)

ANYTHING = re.compile("(.*)", re.DOTALL)
KINDS = ("path", "class", "text", "int", "float")
WHOLE = re.compile(r"\d+(\.0*)?", re.ASCII)  # 3.0, as pandas writes 3 in a column with gaps
JSON = re.compile(r'\s*\{\s*"')  # how a file of JSON lines begins
FIELD = re.compile(r"[^\W\d]\w*")  # a name in a header
DTYPES = {"int": np.int64, "float": np.float64}
SEPARATORS = {"semicolons": ";", "tabs": "\t", "bars": "|"}  # of tables that are no CSV


class Column(NamedTuple):
    """The kind of a column, and its name, or its number from 0."""

    kind: str
    column: str | int


class Line(NamedTuple):
    """A row of the table, and the number of its line in the file, from 1."""

    number: int
    cells: list[str]


class _Table(NamedTuple):
    rows: list[Line]
    places: dict[str, int]  # field -> number of its column


@final
@dataclass(eq=False)
class ListInput(RowInput):
    """A record per row, in the table's order. Its key is its first path; in .scp its key.

    Without a path the key is the row's number from 0. A path may be in several rows; a key of .scp
    may not. The column of a field is a name of the header or a number from 0; by default it is the
    field's name, or its place in ``columns``. A ``path`` is an image, a sound or a .npy file. A
    ``class``, only for the field ``label``, is a name or an integer. Without ``columns`` these are
    ``image`` and ``label``; if the header lacks one of them, all columns, of the kinds that their
    cells show. ``conf/input/list.yaml`` describes the options.
    """

    path: str
    header: bool
    columns: Mapping[str, str] | None
    root: str | None
    allow_outside: bool
    classes: Sequence[str] | None
    label_pattern: str | None

    file_per_record = True
    skip_bad = False

    def __post_init__(self) -> None:
        self.bad: dict[int, DataError] = {}  # with skip_bad: errors of rows, by their numbers
        self.is_scp = self.path.lower().endswith(".scp")
        self.has_names = self.header and not self.is_scp
        if self.columns is not None:
            _ = self.parsed  # before the table is read
        self.folder = self.root or os.path.dirname(self.path) or "."
        self.pattern = class_pattern(self.label_pattern) or ANYTHING

    @cached_property
    def parsed(self) -> dict[str, Column]:
        """The column of each field. ConfigError C162, DataError D164."""
        columns = self.columns
        if columns is None:
            columns = self._usual_columns()
        return _parsed_columns(columns, self.has_names, first=int(self.is_scp))

    @cached_property
    def lines(self) -> tuple[Line, list[Line]]:
        """The header, which may be empty, and the rows. DataError D110."""
        read = _read_scp if self.is_scp else _read_table
        lines, head = read(self.path), Line(1, [])
        if self.has_names:
            head = next(lines, head)
            _check_separated(self.path, head)
        rows = list(lines)
        if not rows:
            raise DataError(110, self.path, "no row", "give a table with a row per record")
        return head, rows

    def _usual_columns(self) -> dict[str, str]:
        """Return the columns of a table that the user does not describe."""
        head, rows = self.lines
        if self.is_scp or (not self.has_names and len(rows[0].cells) == 1):
            return {"image": "path"}
        if not self.has_names or {"image", "label"} <= set(head.cells):
            return {"image": "path", "label": "class"}
        return self._seen_columns(head.cells)

    def _seen_columns(self, names: Sequence[str]) -> dict[str, str]:
        """Return all columns of the header, of the kinds that their cells show. DataError D164."""
        columns: dict[str, str] = {}
        for place, name in enumerate(names):
            if not FIELD.fullmatch(name):
                what = f"the first line has the column {name!r}, which cannot be a field's name"
                fix = "name the columns with input.columns, or set input.header=false"
                raise DataError(164, self.path, what, fix)
            columns[name] = kind_of(name, [row.cells[place : place + 1] for row in self.lines[1]])
        return columns

    @property
    def notes(self) -> tuple[str, ...]:
        """The kinds that were guessed, columns left out, what float32 rounds, doubtful classes."""
        return (*self._guesses(), *self._roundings(), *self._doubtful_classes())

    def _roundings(self) -> Iterator[str]:
        for field, numbers in self._numbers.items():
            if numbers.dtype == np.float64:
                good = np.delete(numbers, [*self.bad])
                merged = len(np.unique(good)) - len(np.unique(good.astype(np.float32)))
                if merged:
                    yield (
                        f"{field}: float32 makes {merged} different numbers equal to others; "
                        "subtract what they share, or pack a Parquet file, whose float64 stays"
                    )

    def _doubtful_classes(self) -> Iterator[str]:
        if not self._has_classes or self.classes is not None:
            return
        names = self._labels[1]
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault("".join(name.split()).casefold(), []).append(name)
        groups = [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]
        if groups:
            yield (
                f"label: classes {listed(groups)} differ only in spaces or case; "
                "make them equal in the table if they are the same"
            )
        if kind_of("", [[name] for name in names]) == "float":
            fix = "to learn numbers, give label the kind float in input.columns"
            if all(map(WHOLE.fullmatch, names)):
                fix = r"to number classes by them, add 'input.label_pattern=^(\d+)'"
            yield f"label: numbers such as {names[0]!r} name classes, in byte order; {fix}"

    def _guesses(self) -> tuple[str, ...]:
        if self.columns is not None or not self.has_names:
            return ()
        head = dict.fromkeys(self.lines[0].cells)
        if left := [name for name in head if name and name not in self.parsed]:
            return (f"columns left out: {', '.join(left)}; take all: {self._all_columns()}",)
        if {"image", "label"} == self.parsed.keys():
            return ()
        return (f"columns are taken to be {self._all_columns()}",)

    def _all_columns(self) -> str:
        """Return the option that takes all columns which a command line can name."""
        head, rows = self.lines
        fields = {name: name for name in head.cells if FIELD.fullmatch(name)}
        words: list[str] = []
        for place, name in enumerate(head.cells):
            if not name or head.cells.count(name) > 1 or not is_quotable(name):
                continue
            if name in self.parsed:
                kind = self.parsed[name].kind
            else:
                kind = kind_of(name, [row.cells[place : place + 1] for row in rows])
            if name in fields:
                words.append(f"{name}: {kind}")
            else:
                field = field_name(name, fields)
                fields[field] = name
                words.append(f'{field}: "{kind}:{name}"')
        return shlex.quote(f"input.columns={{{', '.join(words)}}}")

    @cached_property
    def items(self) -> _Table:
        """The rows, and the columns of the fields. DataError D110, D164."""
        head, rows = self.lines
        places = {field: self._place(head, column) for field, (_, column) in self.parsed.items()}
        wanted = max(places.values()) + 1
        for index, row in enumerate(rows):
            if len(row.cells) < wanted:
                what = f"has {len(row.cells)} columns, {wanted} are wanted"
                fix = "correct the row, or input.columns"
                self._refuse(index, DataError(164, self._line(row), what, fix))
            elif self.has_names and any(row.cells[len(head.cells) :]):
                what = f"has {len(row.cells)} columns, the first line {len(head.cells)}"
                fix = "correct the row: quote a text with a comma in it"
                self._refuse(index, DataError(164, self._line(row), what, fix))
        return _Table(rows, places)

    def _refuse(self, index: int, error: DataError) -> None:
        """Raise the error of a row, or with ``skip_bad`` keep it until the row is read."""
        if not self.skip_bad:
            raise error
        self.bad.setdefault(index, copy(error))  # a copy, which does not hold the stack's frames

    def _place(self, head: Line, column: str | int) -> int:
        if isinstance(column, int):
            return column
        count = head.cells.count(column)
        if count != 1:
            present = ", ".join(head.cells)
            what = f"the first line has the column {column!r} {count} times: {present}"
            fix = "correct input.columns, or set input.header=false and number them"
            raise DataError(164, self.path, what, fix)
        return head.cells.index(column)

    @cached_property
    def real_root(self) -> str:
        return os.path.realpath(self.folder)

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """The columns of numbers: int64 or float32; a class is its number."""
        return {
            field: values.astype(np.float32) if values.dtype == np.float64 else values
            for field, values in self._numbers.items()
        }

    @cached_property
    def _numbers(self) -> dict[str, np.ndarray]:
        """The columns of numbers as the table has them: int64 or float64. A bad cell is 0."""
        columns: dict[str, np.ndarray] = {}
        if self._has_classes:
            columns["label"] = self._labels[0]
        for field, (kind, _) in self.parsed.items():
            if kind in DTYPES:
                columns[field] = self._number_column(self.items.places[field], kind)
        return columns

    def _number_column(self, place: int, kind: str) -> np.ndarray:
        rows = self.items.rows
        if not self.bad:
            numbers = _good_numbers([row.cells[place] for row in rows], kind)
            if numbers is not None:
                return numbers
        numbers = np.zeros(len(rows), DTYPES[kind])
        for index, row in enumerate(rows):
            if index not in self.bad:
                try:
                    numbers[index] = _number(row.cells[place], kind, self._line(row))
                except DataError as error:
                    self._refuse(index, error)
        return numbers

    @property
    def _has_classes(self) -> bool:
        return self.parsed.get("label", Column("", 0)).kind == "class"

    @cached_property
    def _labels(self) -> tuple[np.ndarray, list[str]]:
        """A label per row, 0 for a bad one, and the classes, of a column of the kind ``class``."""
        rows, places = self.items
        names: list[str] = []
        good: list[int] = []  # the rows of the names
        for index, row in enumerate(rows):
            if index not in self.bad:
                try:
                    cell = row.cells[places["label"]]
                    names.append(class_in(cell, self.pattern, self._line(row)))
                    good.append(index)
                except DataError as error:
                    self._refuse(index, error)
        if not names:
            raise copy(next(iter(self.bad.values())))

        def place(number: int) -> str:
            return self._line(rows[good[number]])

        def refuse(number: int, error: DataError) -> None:
            self._refuse(good[number], error)

        numbers, classes = label_column(names, self.classes, self.path, place, refuse=refuse)
        labels = np.zeros(len(rows), np.int64)
        labels[good] = numbers
        return labels, classes

    def manifest_without_fields(self) -> Manifest:
        count = len(self.items.rows)
        for index in range(count):
            self._paths(index)  # checks the paths of all rows
        return Manifest(count, {}, self._classes(), source=f"list {self.path}")

    def _classes(self) -> list[str]:
        if self._has_classes:
            return self._labels[1]
        is_int = self.parsed.get("label", Column("", 0)).kind == "int"
        if is_int and self.numbers["label"].min() >= 0:
            return numbered_classes(int(self.numbers["label"].max()), self.classes, self.path)
        return check_classes((), self.classes, self.path)

    def row(self, index: int) -> Row:
        numbers = self.numbers
        if index in self.bad:
            raise copy(self.bad[index])
        paths = self._paths(index)
        if not self.allow_outside:  # all paths are checked before a file is opened
            for path in paths.values():
                self._check_inside(os.path.realpath(path), self.real_root, index)
        row: Row = {}
        for field in self.parsed:
            if field in paths:
                row[field] = value_of(read_file(paths[field]), paths[field], self.name(index))
            elif field in numbers:
                row[field] = numbers[field][index : index + 1].reshape(())
            else:
                row[field] = self._text(index, field)
        return row

    def _text(self, index: int, field: str) -> str:
        """Return a cell. DataError D162 if it is not UTF-8."""
        text = self.items.rows[index].cells[self.items.places[field]]
        if any("\ud800" <= character <= "\udfff" for character in text):
            what = f"{field} is not UTF-8 text"
            fix = "convert the table to UTF-8, or leave the column out"
            raise DataError(162, self.name(index), what, fix)
        return text

    def _paths(self, index: int) -> dict[str, str]:
        """Return the file of each field of a row. DataError D165 if one is not under the root."""
        cells, places = self.items.rows[index].cells, self.items.places
        paths: dict[str, str] = {}
        if index in self.bad:
            return paths
        for field, (kind, _) in self.parsed.items():
            if kind == "path":
                path = paths[field] = os.path.join(self.folder, cells[places[field]])
                if not self.allow_outside:
                    self._check_inside(os.path.abspath(path), os.path.abspath(self.folder), index)
        return paths

    def _check_inside(self, path: str, root: str, index: int) -> None:
        if "\0" in path or os.path.commonpath([path, root]) != root:
            fix = "set input.root, or input.allow_outside=true if you trust it"
            what = f"{path!r} is not under {root}"
            raise DataError(165, self._line(self.items.rows[index]), what, fix)

    def key(self, index: int) -> str:
        cells, places = self.items.rows[index].cells, self.items.places
        if self.is_scp:
            return cells[0]
        for field, column in self.parsed.items():
            if column.kind == "path" and places[field] < len(cells):
                return cells[places[field]]
        return str(index)

    def _line(self, row: Line) -> str:
        return f"{self.path}: line {row.number}"

    def name(self, index: int) -> str:
        return f"{self._line(self.items.rows[index])} ({self.key(index)})"

    def item_files(self, index: int) -> Sequence[str]:
        return (self.path, *self._paths(index).values())


def _parsed_columns(columns: Mapping[str, str], header: bool, first: int) -> dict[str, Column]:
    """Return the column of each field. ConfigError C162 unless it is ``kind[:column]``."""
    words = text_by_field("columns", columns, "{image: path, label: class}")
    parsed: dict[str, Column] = {}
    for number, (field, word) in enumerate(words.items(), first):
        where = f"input.columns.{field} = {word}"
        kind, _, column = word.partition(":")
        if kind not in KINDS or (kind == "class" and field != "label"):
            fix = "choose path, class (for label), text, int or float, then perhaps :COLUMN"
            raise ConfigError(162, where, "must begin with a kind of column", fix)
        if header:
            parsed[field] = Column(kind, column or field)
            continue
        if column and not re.fullmatch(r"\d{1,6}", column):
            fix = "number columns from 0, or give a table with a header"
            raise ConfigError(162, where, f"{column!r} is not a number", fix)
        parsed[field] = Column(kind, int(column or number))
    return parsed


def kind_of(name: str, cells: Sequence[Sequence[str]]) -> str:
    """Return the kind of a column. A cell is a list of a text, or empty if the row is short."""
    texts = [cell[0] for cell in cells if cell]
    if all(text.lower().endswith(FILES) for text in texts):
        return "path"
    usual = "text"
    numbers = [number_of(text) for text in texts]
    dtypes = {number.dtype.kind for number in numbers if number is not None}
    if None not in numbers:
        usual = "float" if "f" in dtypes else "int"
    is_negative = any(text.strip().startswith("-") for text in texts)
    is_class = usual == "text" or (usual == "int" and not is_negative)
    return "class" if name == "label" and is_class else usual


def _check_separated(path: str, head: Line) -> None:
    """Check that the first line has not a single column that looks like several. DataError D164."""
    if len(head.cells) != 1:
        return
    for name, mark in SEPARATORS.items():
        if mark in head.cells[0]:
            what = f"its columns seem to be separated by {name}: {head.cells[0][:100]!r}"
            fix = "separate them by commas, or by tabs in a file named .tsv"
            raise DataError(164, path, what, fix)


def _read_text(path: str) -> str:
    """Return a text file. DataError D164 for UTF-16."""
    data = read_file(path)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(164, path, "is a text in UTF-16", "convert it to UTF-8")
    return data.decode("utf-8-sig", "surrogateescape")


def _read_table(path: str) -> Iterator[Line]:
    """Yield the rows of a TSV (by its name) or CSV file, without empty lines. DataError D164."""
    content = _read_text(path)
    if JSON.match(content):
        fix = "convert it to CSV, or to Parquet for input=parquet"
        raise DataError(164, path, "holds lines of JSON, not a table", fix)
    delimiter = ","
    if path.lower().endswith((".tsv", ".tab")):
        delimiter = "\t"
    text = io.StringIO(content, newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if any(cells):
                yield Line(reader.line_num, cells)
    except csv.Error as error:
        where = f"{path}: line {reader.line_num}"
        raise DataError(164, where, f"not a table ({error})", "correct its quotes") from error


def _read_scp(path: str) -> Iterator[Line]:
    seen: dict[str, int] = {}
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        where = f"{path}: line {number}"
        cells = re.split(r"[ \t]+", line.strip(" \t\r"), maxsplit=1)
        if not cells[0]:
            continue
        if len(cells) == 2 and (cells[1].endswith("|") or cells[1].startswith("|")):
            fix = "run it, and name the file it writes"
            raise DataError(164, where, "is a command, not a file", fix)
        if cells[0] in seen:
            what = f"key {cells[0]!r} is in line {seen[cells[0]]} too"
            raise DataError(163, where, what, "keep one of them")
        seen[cells[0]] = number
        yield Line(number, cells)


def _good_numbers(texts: Sequence[str], kind: str) -> np.ndarray | None:
    """Return a column of numbers at once. None if ``_number`` would refuse one of them."""
    if not all(NUMBER.fullmatch(text.strip()) for text in texts):
        return None
    parse = int if kind == "int" else float
    try:
        numbers = np.array([parse(text) for text in texts], DTYPES[kind])
    except (ValueError, OverflowError):
        return None
    with np.errstate(over="ignore"):
        is_good = np.isfinite(numbers.astype(np.float32)).all()
    return numbers if is_good else None


def _number(text: str, kind: str, where: str) -> int | float:
    fix = "correct the row, or input.columns"
    try:
        value = int(text) if kind == "int" else float(text)
    except ValueError as error:
        raise DataError(162, where, f"{text!r} is not {kind}", fix) from error
    if not NUMBER.fullmatch(text.strip()):  # such as 1_000
        raise DataError(162, where, f"{text!r} is not {kind}", fix)
    if kind == "int" and not -(2**63) <= value < 2**63:
        raise DataError(162, where, f"{text!r} does not fit 64 bits", fix)
    if not math.isfinite(value):
        raise DataError(162, where, f"{text!r} is not finite", fix)
    with np.errstate(over="ignore"):
        if kind == "float" and np.isinf(np.float32(value)):
            raise DataError(162, where, f"{text!r} does not fit float32", fix)
    return value
