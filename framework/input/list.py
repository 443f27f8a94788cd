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

from framework.contracts.records import LABEL, Manifest
from framework.errors import ConfigError, DataError, listed
from framework.input.rows import Row, RowInput, read_file, text_by_field
from framework.store.folder_store import FILES
from framework.store.foreign import NUMBER, field_name, is_quotable, number_of
from framework.store.values import (
    check_classes,
    class_in,
    class_pattern,
    label_column,
    numbered_classes,
    value_of,
)

ANYTHING = re.compile("(.*)", re.DOTALL)
KINDS = ("path", "class", "text", "int", "float")
WHOLE = re.compile(r"\d+(\.0*)?", re.ASCII)  # 3.0, as pandas writes 3 in a column with gaps
JSON = re.compile(r'\s*\{\s*"')  # how a file of JSON lines begins
FIELD = re.compile(r"[^\W\d]\w*")  # a name in a header
DTYPES = {"int": np.int64, "float": np.float64}
SEPARATORS = {"semicolons": ";", "tabs": "\t", "bars": "|"}  # of tables that are no CSV
LARGEST = float(np.finfo(np.float32).max)


class Column(NamedTuple):
    """The kind of a column, and its name, or its number from 0."""

    kind: str
    column: str | int


class Line(NamedTuple):
    """A row of the table, and the number of its line in the file, from 1."""

    number: int
    cells: list[str]


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
    def lines(self) -> tuple[Line, list[Line]]:
        """The header, which may be empty, and the rows. DataError D110, D164."""
        read = _read_scp if self.is_scp else _read_table
        lines, head = read(self.path), Line(1, [])
        if self.has_names:
            head = next(lines, head)
            for name, mark in SEPARATORS.items():
                if len(head.cells) == 1 and mark in head.cells[0]:
                    what = f"its columns seem to be separated by {name}: {head.cells[0][:100]!r}"
                    fix = "separate them by commas, or by tabs in a file named .tsv"
                    raise DataError(164, self.path, what, fix)
        rows = list(lines)
        if not rows:
            raise DataError(110, self.path, "no row", "give a table with a row per record")
        return head, rows

    @cached_property
    def parsed(self) -> dict[str, Column]:
        """The column of each field. ConfigError C162, DataError D164."""
        if self.columns is not None:
            return _parsed_columns(self.columns, self.has_names, first=int(self.is_scp))
        head, rows = self.lines
        if self.is_scp or (not self.has_names and len(rows[0].cells) == 1):
            columns = {"image": "path"}
        elif not self.has_names or {"image", LABEL} <= set(head.cells):
            columns = {"image": "path", LABEL: "class"}
        else:
            columns = {name: self._kind(name, place) for place, name in enumerate(head.cells)}
            if wrong := [name for name in columns if not FIELD.fullmatch(name)]:
                what = f"the first line has the column {wrong[0]!r}, which cannot be a field's name"
                fix = "name the columns with input.columns, or set input.header=false"
                raise DataError(164, self.path, what, fix)
        return _parsed_columns(columns, self.has_names, first=int(self.is_scp))

    def _kind(self, name: str, place: int) -> str:
        """Return the kind that the cells of a column show. A short row has no cell."""
        return kind_of(name, [row.cells[place] for row in self.lines[1] if place < len(row.cells)])

    @cached_property
    def items(self) -> tuple[list[Line], dict[str, int]]:
        """The rows, and the number of each field's column. DataError D110, D164."""
        head, rows = self.lines
        places: dict[str, int] = {}
        for field, (_, column) in self.parsed.items():
            if isinstance(column, int):
                places[field] = column
            elif head.cells.count(column) == 1:
                places[field] = head.cells.index(column)
            else:
                count, present = head.cells.count(column), ", ".join(head.cells)
                what = f"the first line has the column {column!r} {count} times: {present}"
                fix = "correct input.columns, or set input.header=false and number them"
                raise DataError(164, self.path, what, fix)
        wanted = max(places.values()) + 1
        for index, row in enumerate(rows):
            if len(row.cells) < wanted:
                what = f"has {len(row.cells)} columns, {wanted} are wanted"
                fix = "correct the row, or input.columns"
                self._refuse(index, DataError(164, self._line(index), what, fix))
            elif self.has_names and any(row.cells[len(head.cells) :]):
                what = f"has {len(row.cells)} columns, the first line {len(head.cells)}"
                fix = "correct the row: quote a text with a comma in it"
                self._refuse(index, DataError(164, self._line(index), what, fix))
        return rows, places

    def _refuse(self, index: int, error: DataError) -> None:
        """Raise the error of a row, or with ``skip_bad`` keep it until the row is read."""
        if not self.skip_bad:
            raise error
        self.bad.setdefault(index, copy(error))  # a copy, which does not hold the stack's frames

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """The columns of numbers as the table has them: int64 or float64. A bad cell is 0.

        A class is its number.
        """
        rows, places = self.items
        columns: dict[str, np.ndarray] = {}
        if self._label_kind == "class":
            columns[LABEL] = self.labels[0]
        for field, (kind, _) in self.parsed.items():
            if kind not in DTYPES:
                continue
            columns[field] = np.zeros(len(rows), DTYPES[kind])
            for index, row in enumerate(rows):
                text = row.cells[places[field]] if index not in self.bad else "0"
                try:
                    columns[field][index] = _number(text, kind)
                except ValueError as error:
                    fix = "correct the row, or input.columns"
                    what = f"{text!r} {error}"
                    self._refuse(index, DataError(162, self._line(index), what, fix))
        return columns

    @property
    def _label_kind(self) -> str:
        return self.parsed[LABEL].kind if LABEL in self.parsed else ""

    @cached_property
    def labels(self) -> tuple[np.ndarray, list[str]]:
        """A label per row, 0 for a bad one, and the classes, of a column of the kind ``class``."""
        rows, places = self.items
        names: dict[int, str] = {}  # by row
        for index, row in enumerate(rows):
            if index not in self.bad:
                try:
                    cell = row.cells[places[LABEL]]
                    names[index] = class_in(cell, self.pattern, self._line(index))
                except DataError as error:
                    self._refuse(index, error)
        if not names:
            raise copy(next(iter(self.bad.values())))
        good = list(names)
        numbers, classes = label_column(
            list(names.values()),
            self.classes,
            self.path,
            lambda number: self._line(good[number]),
            refuse=lambda number, error: self._refuse(good[number], error),
        )
        labels = np.zeros(len(rows), np.int64)
        labels[good] = numbers
        return labels, classes

    def described(self) -> Manifest:
        count = len(self.items[0])
        for index in range(count):
            self._paths(index)  # checks the paths of all rows
        classes = check_classes((), self.classes, self.path)
        if self._label_kind == "class":
            classes = self.labels[1]
        elif self._label_kind == "int" and self.numbers[LABEL].min() >= 0:
            classes = numbered_classes(int(self.numbers[LABEL].max()), self.classes, self.path)
        return Manifest(count, {}, classes, source=f"list {self.path}")

    def row(self, index: int) -> Row:
        numbers = self.numbers
        if index in self.bad:
            raise copy(self.bad[index])
        paths = self._paths(index)
        if not self.allow_outside:  # all paths are checked before a file is opened
            for path in paths.values():
                self._check_inside(os.path.realpath(path), self.real_root, index)
        row: Row = {}
        rows, places = self.items
        for field in self.parsed:
            if field in paths:
                row[field] = value_of(read_file(paths[field]), paths[field], self.name(index))
            elif field in numbers:
                number = numbers[field][index]
                row[field] = np.array(number, np.int64 if number.dtype == np.int64 else np.float32)
            else:
                row[field] = rows[index].cells[places[field]]
                if any("\ud800" <= character <= "\udfff" for character in row[field]):
                    fix = "convert the table to UTF-8, or leave the column out"
                    raise DataError(162, self.name(index), f"{field} is not UTF-8 text", fix)
        return row

    @cached_property
    def real_root(self) -> str:
        return os.path.realpath(self.folder)

    def _paths(self, index: int) -> dict[str, str]:
        """Return the file of each field of a row. DataError D165 if one is not under the root."""
        rows, places = self.items
        paths: dict[str, str] = {}
        if index in self.bad:
            return paths
        for field, (kind, _) in self.parsed.items():
            if kind == "path":
                path = paths[field] = os.path.join(self.folder, rows[index].cells[places[field]])
                if not self.allow_outside:
                    self._check_inside(os.path.abspath(path), os.path.abspath(self.folder), index)
        return paths

    def _check_inside(self, path: str, root: str, index: int) -> None:
        if "\0" in path or os.path.commonpath([path, root]) != root:
            fix = "set input.root, or input.allow_outside=true if you trust it"
            raise DataError(165, self._line(index), f"{path!r} is not under {root}", fix)

    def key(self, index: int) -> str:
        rows, places = self.items
        cells = rows[index].cells
        if self.is_scp:
            return cells[0]
        for field, column in self.parsed.items():
            if column.kind == "path" and places[field] < len(cells):
                return cells[places[field]]
        return str(index)

    def _line(self, index: int) -> str:
        return f"{self.path}: line {self.lines[1][index].number}"

    def name(self, index: int) -> str:
        return f"{self._line(index)} ({self.key(index)})"

    def item_files(self, index: int) -> Sequence[str]:
        return (self.path, *self._paths(index).values())

    @property
    def notes(self) -> tuple[str, ...]:
        """The kinds that were guessed, columns left out, what float32 rounds, doubtful classes."""
        notes: list[str] = []
        if self.columns is None and self.has_names:
            left = [name for name in dict.fromkeys(self.lines[0].cells) if name]
            left = [name for name in left if name not in self.parsed]
            if left:
                notes.append(f"columns left out: {', '.join(left)}; take all: {self._all_columns}")
            elif {"image", LABEL} != self.parsed.keys():
                notes.append(f"columns are taken to be {self._all_columns}")
        for field, numbers in self.numbers.items():
            if numbers.dtype == np.float64:
                good = np.delete(numbers, [*self.bad])
                merged = len(np.unique(good)) - len(np.unique(good.astype(np.float32)))
                if merged:
                    notes.append(
                        f"{field}: float32 makes {merged} different numbers equal to others; "
                        "subtract what they share, or pack a Parquet file, whose float64 stays"
                    )
        if self._label_kind == "class" and self.classes is None:
            notes += _doubtful_classes(self.labels[1])
        return tuple(notes)

    @property
    def _all_columns(self) -> str:
        """The option that takes all columns which a command line can name."""
        head = self.lines[0].cells
        fields = {name: name for name in head if FIELD.fullmatch(name)}
        words: list[str] = []
        for place, name in enumerate(head):
            if not name or head.count(name) > 1 or not is_quotable(name):
                continue
            kind = self.parsed[name].kind if name in self.parsed else self._kind(name, place)
            if name in fields:
                words.append(f"{name}: {kind}")
            else:
                field = field_name(name, fields)
                fields[field] = name
                words.append(f'{field}: "{kind}:{name}"')
        return shlex.quote(f"input.columns={{{', '.join(words)}}}")


def _doubtful_classes(names: Sequence[str]) -> Iterator[str]:
    """Yield a note on classes that may be one, or that are numbers to learn."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault("".join(name.split()).casefold(), []).append(name)
    if groups := [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]:
        yield (
            f"label: classes {listed(groups)} differ only in spaces or case; "
            "make them equal in the table if they are the same"
        )
    if kind_of("", names) == "float":
        fix = "to learn numbers, give label the kind float in input.columns"
        if all(map(WHOLE.fullmatch, names)):
            fix = r"to number classes by them, add 'input.label_pattern=^(\d+)'"
        yield f"label: numbers such as {names[0]!r} name classes, in byte order; {fix}"


def _parsed_columns(columns: Mapping[str, str], header: bool, first: int) -> dict[str, Column]:
    """Return the column of each field. ConfigError C162 unless it is ``kind[:column]``."""
    words = text_by_field("columns", columns, "{image: path, label: class}")
    parsed: dict[str, Column] = {}
    for number, (field, word) in enumerate(words.items(), first):
        where = f"input.columns.{field} = {word}"
        kind, _, column = word.partition(":")
        if kind not in KINDS or (kind == "class" and field != LABEL):
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


def kind_of(name: str, cells: Sequence[str]) -> str:
    """Return the kind of a column by its cells."""
    if all(text.lower().endswith(FILES) for text in cells):
        return "path"
    numbers = [number_of(text) for text in cells]
    usual = "text"
    if None not in numbers:
        is_float = any(number is not None and number.dtype.kind == "f" for number in numbers)
        usual = "float" if is_float else "int"
    is_negative = any(text.strip().startswith("-") for text in cells)
    is_class = usual == "text" or (usual == "int" and not is_negative)
    return "class" if name == LABEL and is_class else usual


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
    delimiter = "\t" if path.lower().endswith((".tsv", ".tab")) else ","
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
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


def _number(text: str, kind: str) -> int | float:
    """Return a number that its column can hold. ValueError says what another text is not."""
    try:
        value = int(text) if kind == "int" else float(text)
    except ValueError:
        value = None
    if value is None or not NUMBER.fullmatch(text.strip()):  # such as 1_000
        raise ValueError(f"is not {kind}")
    if kind == "int" and not -(2**63) <= value < 2**63:
        raise ValueError("does not fit 64 bits")
    if not math.isfinite(value):
        raise ValueError("is not finite")
    if kind == "float" and abs(value) > LARGEST:
        raise ValueError("does not fit float32")
    return value
