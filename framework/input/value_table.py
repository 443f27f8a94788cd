"""A table of new values for fields of the records that it names."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, final

import numpy as np

from framework.contracts.records import LABEL, Field, Manifest, Records
from framework.errors import DataError, listed
from framework.input.list import ListInput
from framework.store.columns import is_number
from framework.store.label import INTEGER

NAMING = ("key", "index")  # columns that say which record a row is about
INDEX = re.compile(r"\d{1,18}", re.ASCII)
BOOLS = {"true": True, "1": True, "false": False, "0": False}


@final
@dataclass(frozen=True, eq=False)
class NewValues:
    """The values that some records get.

    Attributes:
        records: The numbers of these records, ascending: int64 [n].
        values: A value for each of them, by field: an array [n], or a list of n arrays of uint8,
            which are texts.
        sha256: Of the table, in hexadecimal.
    """

    records: np.ndarray
    values: Records
    sha256: str

    def put_into(self, records: Records, numbers: np.ndarray) -> None:
        """Replace values of ``records``, whose ``numbers`` ascend: int64 [B]."""
        if not len(numbers):
            return
        first, last = np.searchsorted(self.records, [numbers[0], numbers[-1] + 1]).tolist()
        places = np.searchsorted(numbers, self.records[first:last])
        is_there = numbers[places] == self.records[first:last]
        rows, places = np.flatnonzero(is_there) + first, places[is_there]
        for name, values in self.values.items():
            if isinstance(values, np.ndarray):
                records[name][places] = values[rows]
                continue
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                records[name][place] = values[row]


@final
class ValueTable:
    """A CSV or TSV file with a header. Its column ``key`` or ``index`` names a record per row.

    Raises:
        DataError: D253 if it has neither or both, no other column, or a row of another length.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        head, self._rows = ListInput(path, True, None, None, False, None, None).lines
        names = head.cells
        naming = [name for name in names if name in NAMING]
        if len(naming) != 1 or len(names) == 1 or len(set(names)) != len(names):
            what = f"its header is {','.join(names)[:200]!r}"
            fix = "give it a column key or index, and one for each field, as in 'key,label'"
            raise DataError(253, path, what, fix)
        for row, line in enumerate(self._rows):
            if len(line.cells) != len(names):
                what = f"has {len(line.cells)} columns, its header {len(names)}"
                raise DataError(253, self._place(row), what, "correct the row")
        columns = zip(*(line.cells for line in self._rows), strict=True)
        self._columns = dict(zip(names, map(list, columns), strict=True))
        self._naming = naming[0]

    def new_values(self, manifest: Manifest, keys: Iterable[Sequence[str]]) -> NewValues:
        """Return the values of all columns.

        Args:
            manifest: Describes the records.
            keys: The keys of all records in order, block by block.

        Raises:
            DataError: D253 for a column that is not a field with one number or text per record, or
                a cell that does not fit it; D161 for a cell that is not a class; D254 for a row
                that names no record, or several, or one that another row names.
        """
        names = [name for name in self._columns if name != self._naming]
        fields = {name: self._field(name, manifest) for name in names}
        records = self._records(manifest.num_records, keys)
        order = np.argsort(records)
        values: Records = {}
        for name, field in fields.items():
            column = self._values(name, field, manifest.classes)
            is_array = isinstance(column, np.ndarray)
            values[name] = column[order] if is_array else [column[row] for row in order]
        text = repr(self._columns).encode(errors="surrogatepass")
        return NewValues(records[order], values, hashlib.sha256(text).hexdigest())

    def _place(self, row: int) -> str:
        """Return the name of a row for errors."""
        return f"{self.path}: line {self._rows[row].number}"

    def _field(self, name: str, manifest: Manifest) -> Field:
        fields = manifest.fields
        known = [own for own, field in fields.items() if is_number(field) or field.kind == "text"]
        if name not in known:
            what = f"its column {name} is not a field with one number or text per record"
            fix = "input.add=MODULE.FUNCTION makes new fields"
            if known:
                fix = f"choose from {listed(known)}; {fix}"
            raise DataError(253, self.path, what, fix)
        return fields[name]

    def _records(self, num_records: int, keys: Iterable[Sequence[str]]) -> np.ndarray:
        """Return the number of the record of each row: int64 [rows]."""
        cells = self._columns[self._naming]
        if self._naming == "key":
            records = self._records_of_keys(cells, keys)
        else:
            for row, cell in enumerate(cells):
                if not INDEX.fullmatch(cell) or int(cell) >= num_records:
                    what = f"{cell[:40]!r} is not the number of a record"
                    raise DataError(254, self._place(row), what, f"give 0 to {num_records - 1}")
            records = np.array(cells, np.int64)
        _, firsts = np.unique(records, return_index=True)
        if len(firsts) < len(records):
            again = int(np.setdiff1d(np.arange(len(records)), firsts)[0])
            what = f"names the record {cells[again][:100]!r} again"
            raise DataError(254, self._place(again), what, "keep one row for each record")
        return records

    def _records_of_keys(self, cells: Sequence[str], keys: Iterable[Sequence[str]]) -> np.ndarray:
        fix = "correct it, or name records by their numbers in a column index"
        wanted = set(cells)
        records: dict[str, int] = {}
        for number, key in enumerate(chain.from_iterable(keys)):
            if key in wanted and records.setdefault(key, number) != number:
                what = f"names {key[:100]!r}, the key of records {records[key]} and {number}"
                raise DataError(254, self._place(cells.index(key)), what, fix)
        for row, cell in enumerate(cells):
            if cell not in records:
                what = f"{cell[:100]!r} is not the key of a record"
                raise DataError(254, self._place(row), what, fix)
        return np.array([records[cell] for cell in cells], np.int64)

    def _values(self, name: str, field: Field, classes: Sequence[str]) -> Any:
        """Return the values of a column as a writer takes them."""
        cells = self._columns[name]
        if name == LABEL and classes:
            return np.array(self._labels(cells, classes), field.dtype)
        is_text = field.kind == "text"
        values: list[Any] = []
        for row, cell in enumerate(cells):
            try:
                if is_text:
                    values.append(np.frombuffer(cell.encode(), np.uint8))
                else:
                    values.append(_number(cell.strip(), np.dtype(field.dtype)))
            except (KeyError, ValueError, OverflowError) as error:
                what = f"{cell[:40]!r} is not {'UTF-8 text' if is_text else field.dtype}"
                fix = f"correct the column {name}"
                raise DataError(253, self._place(row), what, fix) from error
        return values if is_text else np.array(values, field.dtype)

    def _labels(self, cells: Sequence[str], classes: Sequence[str]) -> list[int]:
        """Return the label in each cell: the name of a class, or else its number."""
        numbers = {name: number for number, name in enumerate(classes)}
        labels: list[int] = []
        for row, cell in enumerate(cells):
            number = numbers.get(cell, -1)
            if number < 0 and INTEGER.fullmatch(cell.strip()):
                number = int(cell.strip()[:20])
            if not 0 <= number < len(classes):
                what = f"{cell[:40]!r} is neither a class of the stores nor the number of one"
                fix = f"choose from {listed(classes)}; for a new class, add a store that has it"
                raise DataError(161, self._place(row), what, fix)
            labels.append(number)
        return labels


def _number(cell: str, dtype: np.dtype[Any]) -> Any:
    """Return the number in a cell. ValueError or OverflowError if ``dtype`` cannot hold it."""
    if dtype.kind == "b":
        return BOOLS[cell.lower()]
    if "_" in cell or not cell.isascii():  # NumPy would read 1_2 as 12
        raise ValueError
    with np.errstate(over="ignore"):
        number = np.array(cell).astype(dtype)
    if dtype.kind == "f" and np.isinf(number) and "inf" not in cell.lower():
        raise OverflowError
    return number
