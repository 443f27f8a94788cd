"""A table of files, numbers, texts and labels: CSV or TSV."""

import codecs
import csv
import io
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from framework.contracts.records import LABEL, Manifest
from framework.errors import ConfigError, DataError
from framework.input.rows import Row, RowInput, read_file, text_by_field
from framework.store import foreign
from framework.store.files import FILES

ANYTHING = re.compile("(.*)", re.DOTALL)
KINDS = ("path", "class", "text", "int", "float")
WHOLE = re.compile(r"\d+(\.0*)?", re.ASCII)  # 3.0, as pandas writes 3 in a column with gaps
FIELD = re.compile(r"[^\W\d]\w*")  # a name in a header
SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that is not UTF-8
SEPARATORS = {"semicolons": ";", "tabs": "\t", "bars": "|"}  # of tables that are no CSV
LARGEST = float(np.finfo(np.float32).max)
# By kind: what a cell looks like (Python itself reads 1_000), its type, and the limits of that.
NUMBERS = {
    "int": (re.compile(r"[+-]?\d{1,99}", re.ASCII), int, -(2**63), 2**63 - 1, "int64"),
    "float": (foreign.NUMBER, float, -LARGEST, LARGEST, "float32"),
}


class Column(NamedTuple):
    """The kind of a column, and its name, which is its number from 0 without a header."""

    kind: str
    name: str


class Line(NamedTuple):
    """A row of the table, and the number of its line in the file, from 1."""

    number: int
    cells: list[str]


@final
@dataclass(eq=False)
class ListInput(RowInput):
    """A record per row, in the table's order. Its key is its first path, or else its number.

    The column of a field is a name of the header or a number from 0; by default the field's name,
    or its place in ``columns``. A ``path`` is an image, a sound or a .npy file. A ``class``, only
    for ``label``, is a name or an integer. ``conf/input/list.yaml`` describes the options.
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
        if self.columns is not None:
            _ = self.parsed  # before the table is read
        self.folder = self.root or os.path.dirname(self.path) or "."
        self._real_root = os.path.realpath(self.folder)
        self.pattern = foreign.class_pattern(self.label_pattern) or ANYTHING

    @cached_property
    def lines(self) -> tuple[list[str], list[Line]]:
        """The names of the columns, and the rows. DataError D110, D164."""
        head, rows = read_table(self.path, self.header)
        if not self.header:
            return list(map(str, range(len(rows[0].cells)))), rows
        for name, mark in SEPARATORS.items():
            if len(head) == 1 and mark in head[0]:
                what = f"its columns seem to be separated by {name}: {head[0][:100]!r}"
                fix = "separate them by commas, or by tabs in a file named .tsv"
                raise DataError(164, self.path, what, fix)
        return head, rows

    @cached_property
    def parsed(self) -> dict[str, Column]:
        """The column of each field. ConfigError C162, DataError D164."""
        columns = self.columns
        if columns is None:
            head, rows = self.lines
            columns = {"image": "path"}
            if self.header and not {"image", LABEL} <= set(head):
                columns = {name: self._kind(name) for name in head}
                if wrong := [name for name in columns if not FIELD.fullmatch(name)]:
                    what = f"the first line has the column {wrong[0]!r}, "
                    what += "which cannot be a field's name"
                    fix = "name the columns with input.columns, or set input.header=false"
                    raise DataError(164, self.path, what, fix)
            elif self.header or len(rows[0].cells) > 1:
                columns[LABEL] = "class"
        parsed: dict[str, Column] = {}
        words = text_by_field("columns", columns, "{image: path, label: class}")
        for number, (field, word) in enumerate(words.items()):
            where = f"input.columns.{field} = {word}"
            kind, _, column = word.partition(":")
            if kind not in KINDS or (kind == "class" and field != LABEL):
                fix = "choose path, class (for label), text, int or float, then perhaps :COLUMN"
                raise ConfigError(162, where, "must begin with a kind of column", fix)
            usual = field if self.header else str(number)
            parsed[field] = Column(kind, column or usual)
        return parsed

    def _kind(self, name: str) -> str:
        head, rows = self.lines
        place = head.index(name)
        return kind_of(name, [row.cells[place] for row in rows if place < len(row.cells)])

    @cached_property
    def places(self) -> dict[str, int]:
        """The number of each field's column. DataError D164."""
        head = self.lines[0]
        places: dict[str, int] = {}
        for field, (_, name) in self.parsed.items():
            if head.count(name) != 1:
                what = f"the first line has the column {name!r} {head.count(name)} times: "
                fix = "correct input.columns, or set input.header=false and number them"
                raise DataError(164, self.path, what + ", ".join(head), fix)
            places[field] = head.index(name)
        return places

    @cached_property
    def content(self) -> tuple[list[dict[str, Any] | DataError], list[str]]:
        """The values of each row by field (or its error, with ``skip_bad``), and the classes."""
        rows: list[dict[str, Any] | DataError] = []
        for line in self.lines[1]:
            try:
                rows.append(self._values(line))
            except DataError as error:
                rows.append(self._bad(error))
        good = {index: row for index, row in enumerate(rows) if isinstance(row, dict)}
        if not good:
            raise next(row for row in rows if isinstance(row, DataError))
        labels: list[Any] = [row.get(LABEL) for row in good.values()]
        kind = self.parsed[LABEL].kind if LABEL in self.parsed else ""
        if kind == "int" and min(labels) >= 0:
            return rows, foreign.numbered_classes(max(labels), self.classes, self.path)
        if kind != "class":
            return rows, foreign.check_classes((), self.classes, self.path)
        places = list(good)

        def refuse(number: int, error: DataError) -> None:
            rows[places[number]] = self._bad(error)

        def name(number: int) -> str:
            return self._line(places[number])

        known = self.classes, self.path
        numbers, classes = foreign.label_column(labels, *known, name, refuse=refuse)
        for row, number in zip(good.values(), numbers, strict=True):
            row[LABEL] = number
        return rows, classes

    def _bad(self, error: DataError) -> DataError:
        """Return the error of a bad row, for when it is read; raise it unless ``skip_bad``."""
        if not self.skip_bad:
            raise error
        return copy(error)  # a copy does not hold the stack's frames

    def _values(self, line: Line) -> dict[str, Any]:
        where = f"{self.path}: line {line.number}"
        cells, head = line.cells, self.lines[0]
        wanted = max(self.places.values()) + 1
        if len(cells) < wanted:
            what = f"has {len(cells)} columns, {wanted} are wanted"
            raise DataError(164, where, what, "correct the row, or input.columns")
        if self.header and any(cells[len(head) :]):
            what = f"has {len(cells)} columns, the first line {len(head)}"
            raise DataError(164, where, what, "correct the row: quote a text with a comma in it")
        values: dict[str, Any] = {}
        for field, (kind, _) in self.parsed.items():
            cell = values[field] = cells[self.places[field]]
            if kind == "path":
                values[field] = os.path.join(self.folder, cell)
                root = os.path.abspath(self.folder)
                self._check_inside(os.path.abspath(values[field]), root, where)
            elif kind == "class":
                values[field] = foreign.class_in(cell, self.pattern, where)
            elif kind == "text" and SURROGATE.search(cell):
                raise DataError(162, where, f"{field} is not UTF-8 text", "convert it to UTF-8")
            elif kind in NUMBERS:
                pattern, read, least, most, dtype = NUMBERS[kind]
                wrong = f"is not {kind}"
                if pattern.fullmatch(cell.strip()):
                    values[field] = read(cell)
                    if least <= values[field] <= most:
                        continue
                    wrong = f"is not finite, or does not fit {dtype}"
                what = f"{cell[:100]!r} {wrong}"
                raise DataError(162, where, what, "correct the row, or input.columns")
        return values

    def _check_inside(self, path: str, root: str, where: str) -> None:
        if not self.allow_outside and ("\0" in path or os.path.commonpath([path, root]) != root):
            fix = "set input.root, or input.allow_outside=true if you trust it"
            raise DataError(165, where, f"{path!r} is not under {root}", fix)

    def described(self) -> Manifest:
        rows, classes = self.content
        return Manifest(len(rows), {}, classes, source=f"list {self.path}")

    def row(self, index: int) -> Row:
        row = self.content[0][index]
        if isinstance(row, DataError):
            raise copy(row)
        for field in self._paths:  # all paths are checked before a file is opened
            self._check_inside(os.path.realpath(row[field]), self._real_root, self._line(index))
        made: Row = dict(row)
        for field, value in row.items():
            if field in self._paths:
                made[field] = foreign.value_of(read_file(value), value, self.name(index))
            elif isinstance(value, int):
                made[field] = np.array(value, np.int64)
            elif isinstance(value, float):
                made[field] = np.array(value, np.float32)
        return made

    @cached_property
    def _paths(self) -> list[str]:
        return [field for field, (kind, _) in self.parsed.items() if kind == "path"]

    def key(self, index: int) -> str:
        cells = self.lines[1][index].cells
        places = [self.places[field] for field in self._paths]
        return next((cells[place] for place in places if place < len(cells)), str(index))

    def _line(self, index: int) -> str:
        return f"{self.path}: line {self.lines[1][index].number}"

    def name(self, index: int) -> str:
        return f"{self._line(index)} ({self.key(index)})"

    def item_files(self, index: int) -> Sequence[str]:
        row = self.content[0][index]
        if isinstance(row, DataError):
            return (self.path,)
        return (self.path, *(row[field] for field in self._paths))

    @property
    def notes(self) -> tuple[str, ...]:
        """The kinds that were guessed, columns left out, and doubtful classes."""
        notes: list[str] = []
        kinds = {field: kind for field, (kind, _) in self.parsed.items()}
        if self.columns is None and self.header:
            names = [name for name in dict.fromkeys(self.lines[0]) if FIELD.fullmatch(name)]
            all_kinds = [f"{name}: {kinds.get(name) or self._kind(name)}" for name in names]
            every = shlex.quote(f"input.columns={{{', '.join(all_kinds)}}}")
            if left := [name for name in names if name not in kinds]:
                notes.append(f"columns left out: {', '.join(left)}; take all: {every}")
            elif {"image", LABEL} != kinds.keys():
                notes.append(f"columns are taken to be {every}")
        names = self.content[1]
        if kinds.get(LABEL) == "class" and self.classes is None and kind_of("", names) == "float":
            fix = "to learn numbers, give label the kind float in input.columns"
            if all(map(WHOLE.fullmatch, names)):
                fix = r"to number classes by them, add 'input.label_pattern=^(\d+)'"
            what = f"numbers such as {names[0]!r} name classes, in byte order"
            notes.append(f"label: {what}; {fix}")
        return tuple(notes)


def kind_of(name: str, cells: Sequence[str]) -> str:
    """Return the kind of a column by its cells."""
    if all(text.lower().endswith(FILES) for text in cells):
        return "path"
    numbers = list(map(foreign.number_of, cells))
    kind = "int"
    if None in numbers:
        kind = "text"
    elif any(number is not None and number.dtype.kind == "f" for number in numbers):
        kind = "float"
    is_negative = any(text.strip().startswith("-") for text in cells)
    if name == LABEL and (kind == "text" or (kind == "int" and not is_negative)):
        return "class"
    return kind


def read_table(path: str, header: bool = True) -> tuple[list[str], list[Line]]:
    """Return the header's cells, and the rows of a TSV (by its name) or CSV file.

    Empty lines are left out. DataError D110 if no row is left, D164 for what is no table.
    """
    delimiter = "\t" if path.lower().endswith((".tsv", ".tab")) else ","
    data = read_file(path)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(164, path, "is a text in UTF-16", "convert it to UTF-8")
    content = data.decode("utf-8-sig", "surrogateescape")
    if content.lstrip().startswith('{"'):
        fix = "convert it to CSV, or to Parquet for input=parquet"
        raise DataError(164, path, "holds lines of JSON, not a table", fix)
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    try:
        lines = [Line(reader.line_num, cells) for cells in reader if any(cells)]
    except csv.Error as error:
        where = f"{path}: line {reader.line_num}"
        raise DataError(164, where, f"not a table ({error})", "correct its quotes") from error
    head = lines.pop(0).cells if header and lines else []
    if not lines:
        raise DataError(110, path, "no row", "give a table with a row per record")
    return head, lines
