"""A table of files, numbers, texts and labels: CSV or TSV."""

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
from typing import Any, NamedTuple, final

import numpy as np

from framework.contracts.records import LABEL, Manifest
from framework.errors import ConfigError, DataError
from framework.input.rows import Row, RowInput, read_file, text_by_field
from framework.store import foreign as labels
from framework.store.files import FILES
from framework.store.foreign import NUMBER, number_of, value_of

ANYTHING = re.compile("(.*)", re.DOTALL)
KINDS = ("path", "class", "text", "int", "float")
WHOLE = re.compile(r"\d+(\.0*)?", re.ASCII)  # 3.0, as pandas writes 3 in a column with gaps
FIELD = re.compile(r"[^\W\d]\w*")  # a name in a header
SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that is not UTF-8
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
        self.pattern = labels.class_pattern(self.label_pattern) or ANYTHING

    @cached_property
    def lines(self) -> tuple[Line, list[Line]]:
        """The header, which may be empty, and the rows. DataError D110, D164."""
        rows = list(read_table(self.path))
        head = Line(1, [])
        if self.header and rows:
            head = rows.pop(0)
            for name, mark in SEPARATORS.items():
                if len(head.cells) == 1 and mark in head.cells[0]:
                    what = f"its columns seem to be separated by {name}: {head.cells[0][:100]!r}"
                    fix = "separate them by commas, or by tabs in a file named .tsv"
                    raise DataError(164, self.path, what, fix)
        if not rows:
            raise DataError(110, self.path, "no row", "give a table with a row per record")
        return head, rows

    @cached_property
    def parsed(self) -> dict[str, Column]:
        """The column of each field. ConfigError C162, DataError D164."""
        columns = self.columns
        if columns is None:
            head, rows = self.lines
            columns = {"image": "path"}
            if self.header and not {"image", LABEL} <= set(head.cells):
                columns = {name: self._kind(name) for name in head.cells}
                if wrong := [name for name in columns if not FIELD.fullmatch(name)]:
                    what = f"the first line has the column {wrong[0]!r}, "
                    what += "which cannot be a field's name"
                    fix = "name the columns with input.columns, or set input.header=false"
                    raise DataError(164, self.path, what, fix)
            elif self.header or len(rows[0].cells) > 1:
                columns = {"image": "path", LABEL: "class"}
        parsed: dict[str, Column] = {}
        words = text_by_field("columns", columns, "{image: path, label: class}")
        for number, (field, word) in enumerate(words.items()):
            where = f"input.columns.{field} = {word}"
            kind, _, column = word.partition(":")
            if kind not in KINDS or (kind == "class" and field != LABEL):
                fix = "choose path, class (for label), text, int or float, then perhaps :COLUMN"
                raise ConfigError(162, where, "must begin with a kind of column", fix)
            if self.header:
                parsed[field] = Column(kind, column or field)
                continue
            if column and not re.fullmatch(r"\d{1,6}", column):
                fix = "number columns from 0, or give a table with a header"
                raise ConfigError(162, where, f"{column!r} is not a number", fix)
            parsed[field] = Column(kind, int(column or number))
        return parsed

    def _kind(self, name: str) -> str:
        """Return the kind that the cells of a column of the header show."""
        head, rows = self.lines
        place = head.cells.index(name)
        return kind_of(name, [row.cells[place] for row in rows if place < len(row.cells)])

    @cached_property
    def places(self) -> dict[str, int]:
        """The number of each field's column. DataError D164."""
        cells = self.lines[0].cells
        places: dict[str, int] = {}
        for field, (_, column) in self.parsed.items():
            if isinstance(column, int):
                places[field] = column
            elif cells.count(column) == 1:
                places[field] = cells.index(column)
            else:
                count, present = cells.count(column), ", ".join(cells)
                what = f"the first line has the column {column!r} {count} times: {present}"
                fix = "correct input.columns, or set input.header=false and number them"
                raise DataError(164, self.path, what, fix)
        return places

    @cached_property
    def content(self) -> tuple[list[dict[str, Any] | DataError], list[str]]:
        """The values of each row by field, a path being a ``str``, and the classes.

        With ``skip_bad``, a bad row is its error.
        """
        rows: list[dict[str, Any] | DataError] = []
        for line in self.lines[1]:
            try:
                rows.append(self._values(line))
            except DataError as error:
                if not self.skip_bad:
                    raise
                rows.append(copy(error))  # a copy does not hold the stack's frames
        good = [(index, row) for index, row in enumerate(rows) if isinstance(row, dict)]
        if not good:
            raise next(row for row in rows if isinstance(row, DataError))
        classes = labels.check_classes((), self.classes, self.path)
        kind = self.parsed[LABEL].kind if LABEL in self.parsed else ""
        if kind == "class":

            def refuse(number: int, error: DataError) -> None:
                if not self.skip_bad:
                    raise error
                rows[good[number][0]] = copy(error)

            numbers, classes = labels.label_column(
                [row[LABEL] for _, row in good],
                self.classes,
                self.path,
                lambda number: self._line(good[number][0]),
                refuse=refuse,
            )
            for (_, row), number in zip(good, numbers, strict=True):
                row[LABEL] = number
        elif kind == "int" and min(row[LABEL] for _, row in good) >= 0:
            largest = max(row[LABEL] for _, row in good)
            classes = labels.numbered_classes(largest, self.classes, self.path)
        return rows, classes

    def _values(self, line: Line) -> dict[str, Any]:
        """Return the values of a row. DataError D162, D164 or D165 for one that does not fit."""
        where = f"{self.path}: line {line.number}"
        cells, head = line.cells, self.lines[0].cells
        wanted = max(self.places.values()) + 1
        if len(cells) < wanted:
            what = f"has {len(cells)} columns, {wanted} are wanted"
            raise DataError(164, where, what, "correct the row, or input.columns")
        if self.header and any(cells[len(head) :]):
            what = f"has {len(cells)} columns, the first line {len(head)}"
            raise DataError(164, where, what, "correct the row: quote a text with a comma in it")
        values: dict[str, Any] = {}
        for field, (kind, _) in self.parsed.items():
            cell = cells[self.places[field]]
            values[field] = cell
            if kind == "path":
                values[field] = os.path.join(self.folder, cell)
                root = os.path.abspath(self.folder)
                self._check_inside(os.path.abspath(values[field]), root, where)
            elif kind == "class":
                values[field] = labels.class_in(cell, self.pattern, where)
            elif kind == "text":
                if SURROGATE.search(cell):
                    fix = "convert the table to UTF-8, or leave the column out"
                    raise DataError(162, where, f"{field} is not UTF-8 text", fix)
            else:
                wrong = ""
                try:
                    if not NUMBER.fullmatch(cell.strip()):  # such as 1_000
                        raise ValueError
                    values[field] = int(cell) if kind == "int" else float(cell)
                except ValueError:
                    wrong = f"is not {kind}"
                if not wrong and kind == "int" and not -(2**63) <= values[field] < 2**63:
                    wrong = "does not fit 64 bits"
                elif not wrong and not math.isfinite(values[field]):
                    wrong = "is not finite"
                elif not wrong and kind == "float" and abs(values[field]) > LARGEST:
                    wrong = "does not fit float32"
                if wrong:
                    fix = "correct the row, or input.columns"
                    raise DataError(162, where, f"{cell!r} {wrong}", fix)
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
        made: Row = dict(row)
        paths = [field for field, (kind, _) in self.parsed.items() if kind == "path"]
        for field in paths:  # all paths are checked before a file is opened
            self._check_inside(os.path.realpath(row[field]), self._real_root, self._line(index))
        for field, value in row.items():
            if field in paths:
                made[field] = value_of(read_file(value), value, self.name(index))
            elif isinstance(value, int | float):
                made[field] = np.array(value, np.int64 if isinstance(value, int) else np.float32)
        return made

    def key(self, index: int) -> str:
        cells = self.lines[1][index].cells
        for field, column in self.parsed.items():
            if column.kind == "path" and self.places[field] < len(cells):
                return cells[self.places[field]]
        return str(index)

    def _line(self, index: int) -> str:
        return f"{self.path}: line {self.lines[1][index].number}"

    def name(self, index: int) -> str:
        return f"{self._line(index)} ({self.key(index)})"

    def item_files(self, index: int) -> Sequence[str]:
        row = self.content[0][index]
        if isinstance(row, DataError):
            return (self.path,)
        return (self.path, *(row[f] for f, (kind, _) in self.parsed.items() if kind == "path"))

    @property
    def notes(self) -> tuple[str, ...]:
        """The kinds that were guessed, columns left out, and doubtful classes."""
        notes: list[str] = []
        if self.columns is None and self.header:
            names = [name for name in dict.fromkeys(self.lines[0].cells) if FIELD.fullmatch(name)]
            kinds = [
                f"{name}: {self.parsed[name].kind if name in self.parsed else self._kind(name)}"
                for name in names
            ]
            every = shlex.quote(f"input.columns={{{', '.join(kinds)}}}")
            if left := [name for name in names if name not in self.parsed]:
                notes.append(f"columns left out: {', '.join(left)}; take all: {every}")
            elif {"image", LABEL} != self.parsed.keys():
                notes.append(f"columns are taken to be {every}")
        is_class = LABEL in self.parsed and self.parsed[LABEL].kind == "class"
        if is_class and self.classes is None and kind_of("", self.content[1]) == "float":
            names = self.content[1]
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
    numbers = [number_of(text) for text in cells]
    usual = "text"
    if None not in numbers:
        is_float = any(number is not None and number.dtype.kind == "f" for number in numbers)
        usual = "float" if is_float else "int"
    is_negative = any(text.strip().startswith("-") for text in cells)
    is_class = usual == "text" or (usual == "int" and not is_negative)
    return "class" if name == LABEL and is_class else usual


def read_table(path: str) -> Iterator[Line]:
    """Yield the rows of a TSV (by its name) or CSV file, without empty lines. DataError D164."""
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
        for cells in reader:
            if any(cells):
                yield Line(reader.line_num, cells)
    except csv.Error as error:
        where = f"{path}: line {reader.line_num}"
        raise DataError(164, where, f"not a table ({error})", "correct its quotes") from error
