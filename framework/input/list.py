"""A table that names files and labels: CSV, TSV, or Kaldi's .scp (``key path`` in a line)."""

import csv
import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from framework.contracts.records import Chunk, Manifest
from framework.errors import ConfigError, DataError
from framework.input.array_values import Row, chunk_of, first_fields, value_of
from framework.input.file_items import read_file
from framework.input.label import class_in, class_pattern, label_column, numbered_classes

WHOLE = re.compile("(.*)", re.DOTALL)
KINDS = ("path", "class", "int", "float")
Column = tuple[str, str | int]  # kind; the name or number of the column


class Line(NamedTuple):
    """A row of the table. ``number``: its line in the file, from 1."""

    number: int
    cells: list[str]


@final
class ListInput:
    """A record per row, in the table's order; its key is its first path, in .scp its key.

    ``columns``: field -> ``kind`` or ``kind:column``; ``path`` (an image or .npy file), ``class`` (a name, or an integer, which stays
    as it is; for the field ``label`` only), ``int``, ``float``. ``column``: a name of the header or, without one, a number from 0; left out: the field's own name, or
    its place in ``columns``. ``root``: the folder of the paths, and what they may not leave unless ``allow_outside``; null: the
    table's. A path may stand in several rows; a key of .scp may not. ``classes`` and ``label_pattern``: as in ``input=folder``, the
    pattern looked for in the class column.
    """

    def __init__(
        self,
        path: str,
        header: bool,
        columns: Mapping[str, str] | None,
        root: str | None,
        allow_outside: bool,
        classes: Sequence[str] | None,
        label_pattern: str | None,
    ) -> None:
        self.path, self.scp = path, path.lower().endswith(".scp")
        self.header = header and not self.scp
        self.columns = _columns(
            columns or self._usual(), named=self.header, first=1 if self.scp else 0
        )
        self.root, self.allow_outside = root or os.path.dirname(path) or ".", allow_outside
        self.classes, self.pattern = (
            classes,
            None if label_pattern is None else class_pattern(label_pattern),
        )

    def _usual(self) -> Mapping[str, str]:
        return {"image": "path"} if self.scp else {"image": "path", "label": "class"}

    @cached_property
    def items(self) -> tuple[list[Line], dict[str, int]]:
        """(rows, field -> the number of its column). DataError D164 for what is no such table."""
        lines = _read_scp(self.path) if self.scp else _read_table(self.path)
        head = next(lines, None) if self.header else None
        places = {field: self._place(head, column) for field, (_, column) in self.columns.items()}
        rows = list(lines)
        if not rows:
            raise DataError(110, self.path, "no row", "give a table with a row per record")
        for row in rows:
            if max(places.values()) >= len(row.cells):
                what = f"has {len(row.cells)} columns, {max(places.values()) + 1} are wanted"
                raise DataError(
                    164,
                    f"{self.path}: line {row.number}",
                    what,
                    "mend the row, or correct input.columns",
                )
        return rows, places

    def _place(self, head: Line | None, column: str | int) -> int:
        if isinstance(column, int):
            return column
        names = [] if head is None else head.cells
        if names.count(column) != 1:
            what = f"the first line has the column {column!r} {names.count(column)} times: {', '.join(names)}"
            raise DataError(
                164,
                self.path,
                what,
                "correct input.columns, or set input.header=false and number them",
            )
        return names.index(column)

    @cached_property
    def real_root(self) -> str:
        return os.path.realpath(self.root)

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """The columns that are no paths, as int64 or float32; a class is its number."""
        return {
            field: self._numbers(field, kind)
            for field, (kind, _) in self.columns.items()
            if kind != "path"
        }

    def _numbers(self, field: str, kind: str) -> np.ndarray:
        if kind == "class":
            return np.array(self._labels[0], np.int64)
        rows, places = self.items
        values = [
            _number(row.cells[places[field]], kind, f"{self.path}: line {row.number}")
            for row in rows
        ]
        return np.array(values, np.int64 if kind == "int" else np.float32)

    @cached_property
    def _labels(self) -> tuple[list[int], list[str]]:
        """A label per row, and the classes, of a column of the kind ``class``."""
        rows, places = self.items
        lines = [f"{self.path}: line {row.number}" for row in rows]
        cells = [row.cells[places["label"]] for row in rows]
        names = [
            class_in(cell, self.pattern or WHOLE, line)
            for cell, line in zip(cells, lines, strict=True)
        ]
        return label_column(names, self.classes, self.path, lines.__getitem__)

    def _known_classes(self) -> list[str]:
        kind = self.columns.get("label", ("", ""))[0]
        if kind == "class":
            return self._labels[1]
        if kind == "int" and self.numbers["label"].min() >= 0:
            return numbered_classes(int(self.numbers["label"].max()), self.classes, self.path)
        return []

    @cached_property
    def manifest(self) -> Manifest:
        rows, _ = self.items
        for index in range(len(rows)):
            self._paths(index)  # all, before any is opened
        fields = first_fields(len(rows), lambda index: [self._row(index)], self.name)
        return Manifest(len(rows), fields, self._known_classes(), source=f"list {self.path}")

    def read(self, start: int, stop: int) -> Chunk:
        rows = [self._row(index) for index in range(start, stop)]
        keys = [self._key(index) for index in range(start, stop)]
        return chunk_of(rows, keys, self.manifest.fields, lambda number: self.name(start + number))

    def _row(self, index: int) -> Row:
        paths = self._paths(index)
        if not self.allow_outside:
            for path in paths.values():
                self._check_inside(os.path.realpath(path), self.real_root, index)
        values: Row = {
            field: value_of(read_file(path), path, self.name(index))
            for field, path in paths.items()
        }
        values.update(
            {
                field: numbers[index : index + 1].reshape(())
                for field, numbers in self.numbers.items()
            }
        )
        return {field: values[field] for field in self.columns}

    def _paths(self, index: int) -> dict[str, str]:
        """Field -> file of a row. DataError D165 where the table's words lead out of the root."""
        (_, cells), places = self.items[0][index], self.items[1]
        paths: dict[str, str] = {}
        for field, (kind, _) in self.columns.items():
            if kind == "path":
                paths[field] = os.path.join(self.root, cells[places[field]])
                if not self.allow_outside:
                    self._check_inside(
                        os.path.abspath(paths[field]), os.path.abspath(self.root), index
                    )
        return paths

    def _check_inside(self, path: str, root: str, index: int) -> None:
        if "\0" in path or os.path.commonpath([path, root]) != root:
            where = f"{self.path}: line {self.items[0][index].number}"
            raise DataError(
                165,
                where,
                f"{path!r} is not under {root}",
                "set input.root, or input.allow_outside=true if you trust it",
            )

    def _key(self, index: int) -> str:
        row, places = self.items[0][index], self.items[1]
        first = next(field for field, (kind, _) in self.columns.items() if kind == "path")
        return row.cells[0 if self.scp else places[first]]

    def name(self, index: int) -> str:
        return f"{self.path}: line {self.items[0][index].number} ({self._key(index)})"


def _columns(columns: Mapping[str, str], named: bool, first: int) -> dict[str, Column]:
    """Field -> (kind, column). ConfigError C162 for what is not ``kind`` or ``kind:column``."""
    if not hasattr(columns, "items"):
        raise ConfigError(
            162,
            f"input.columns = {columns}",
            "not field: kind",
            "give input.columns={image: path, label: class}",
        )
    found: dict[str, Column] = {}
    for number, (field, word) in enumerate(columns.items()):
        where = f"input.columns.{field} = {word}"
        kind, _, column = str(word).partition(":")
        if kind not in KINDS or (kind == "class" and field != "label"):
            raise ConfigError(
                162,
                where,
                "not a kind of column",
                "choose path, class (for label), int or float, then perhaps :COLUMN",
            )
        if not named and column and not re.fullmatch(r"\d{1,6}", column):
            raise ConfigError(
                162,
                where,
                f"{column!r} is not a number",
                "number columns from 0, or give a table with a header",
            )
        found[str(field)] = kind, (column or str(field)) if named else int(column or number + first)
    if all(kind != "path" for kind, _ in found.values()):
        raise ConfigError(
            162,
            f"input.columns = {dict(columns)}",
            "has no path",
            "name the column of the files, as in image: path",
        )
    return found


def _read_table(path: str) -> Iterator[Line]:
    """The rows of a CSV or (by its name) TSV file; empty lines are passed over."""
    tabs = path.lower().endswith((".tsv", ".tab"))
    text = io.StringIO(read_file(path).decode("utf-8-sig", "surrogateescape"), newline="")
    reader = csv.reader(text, delimiter="\t" if tabs else ",", strict=True)
    try:
        for cells in reader:
            if any(cells):
                yield Line(reader.line_num, cells)
    except csv.Error as error:
        raise DataError(
            164, f"{path}: line {reader.line_num}", f"not a table ({error})", "mend its quotes"
        ) from error


def _read_scp(path: str) -> Iterator[Line]:
    seen: dict[str, int] = {}
    for number, line in enumerate(
        read_file(path).decode("utf-8-sig", "surrogateescape").split("\n"), 1
    ):
        cells = re.split(r"[ \t]+", line.strip(" \t\r"), maxsplit=1)
        if not cells[0]:
            continue
        if len(cells) == 2 and (cells[1].endswith("|") or cells[1].startswith("|")):
            raise DataError(
                164,
                f"{path}: line {number}",
                "is a command, not a file",
                "run it, and name the file it writes",
            )
        if cells[0] in seen:
            raise DataError(
                163,
                f"{path}: line {number}",
                f"key {cells[0]!r} is in line {seen[cells[0]]} too",
                "keep one of them",
            )
        seen[cells[0]] = number
        yield Line(number, cells)


def _number(text: str, kind: str, where: str) -> int | float:
    try:
        value = int(text) if kind == "int" else float(text)
    except ValueError as error:
        raise DataError(
            162, where, f"{text!r} is not {kind}", "mend the row, or correct input.columns"
        ) from error
    if kind == "int" and not -(2**63) <= value < 2**63:
        raise DataError(162, where, f"{text!r} does not fit 64 bits", "mend the row")
    if kind == "float" and not math.isfinite(value):
        raise DataError(162, where, f"{text!r} is not finite", "mend the row, or leave it out")
    return value
