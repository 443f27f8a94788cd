"""Tables of values by record, and the records that keys name."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np

from framework.contracts.records import RecordStore
from framework.errors import DataError
from framework.input.file_items import read_file
from framework.input.list import Line, ListInput, kind_of

NAMING = ("key", "index")  # columns that say which record a row is about
INDEX = re.compile(r"\d{1,18}", re.ASCII)
FIX_KEYS = "correct it, or name records by their numbers in a column index"


@final
class ValueTable:
    """A CSV or TSV file with a header. Its column ``key`` or ``index`` names a record per row.

    DataError D253 if it has neither, or both, or no other column.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        naming = [name for name in self._head if name in NAMING]
        self.names = [name for name in self._head if name not in NAMING]
        if len(naming) != 1 or not self.names or len(set(self._head)) != len(self._head):
            what = f"its header is {','.join(self._head)!r}"
            fix = "give it a column key or index, and one for each field, as in 'key,label'"
            raise DataError(253, path, what, fix)
        self.naming = naming[0]

    @cached_property
    def _input(self) -> ListInput:
        return self._list_input(None)

    @property
    def _head(self) -> list[str]:
        return self._input.lines[0].cells

    @property
    def _rows(self) -> list[Line]:
        return self._input.lines[1]

    def place(self, row: int) -> str:
        """Return the name of a row for errors."""
        return f"{self.path}: line {self._rows[row].number}"

    def cells(self, name: str) -> list[str]:
        """Return a column. DataError D253 if a row is too short."""
        place = self._head.index(name)
        for row, line in enumerate(self._rows):
            if len(line.cells) != len(self._head):
                what = f"has {len(line.cells)} columns, its header {len(self._head)}"
                raise DataError(253, self.place(row), what, "correct the row")
        return [line.cells[place] for line in self._rows]

    def places(self, store: RecordStore) -> np.ndarray:
        """Return the record of each row: int64 [rows]. DataError D254 for none, or one twice."""
        cells = self.cells(self.naming)
        if self.naming == "key":
            return placed(store, cells, self.path)
        count = store.manifest.num_records
        for row, cell in enumerate(cells):
            if not INDEX.fullmatch(cell) or int(cell) >= count:
                what = f"{cell[:40]!r} is not the number of a record"
                raise DataError(254, self.place(row), what, f"give one from 0 to {count - 1}")
        rows = np.array(cells, np.int64)
        _check_once(rows, cells, self.path)
        return rows

    def as_input(self) -> ListInput:
        """Return an input whose fields are the columns, of the kinds that their cells show.

        DataError D253 for a column of files.
        """
        kinds = {name: kind_of(name, [[cell] for cell in self.cells(name)]) for name in self.names}
        if files := [name for name, kind in kinds.items() if kind == "path"]:
            what = f"its column {files[0]} names files, and a table has numbers and texts"
            fix = "pack the files with input=list, and add that store"
            raise DataError(253, self.path, what, fix)
        return self._list_input(kinds)

    def _list_input(self, columns: dict[str, str] | None) -> ListInput:
        return ListInput(self.path, True, columns, None, False, None, None)


def read_keys(path: str) -> list[str]:
    """Return the keys in a text file with a key per line."""
    text = read_file(path).decode("utf-8-sig", "surrogateescape")
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


def placed(store: RecordStore, keys: Sequence[str], path: str) -> np.ndarray:
    """Return the record that each key names: int64 [keys].

    Raises:
        DataError: D254 if a key names no record or several, or occurs twice among ``keys``.
    """
    places = _places(store, keys, path)
    if unknown := [key for key in dict.fromkeys(keys) if key not in places]:
        what = f"{len(unknown)} of its keys name no record, such as {unknown[0][:100]!r}"
        raise DataError(254, path, what, FIX_KEYS)
    rows = np.array([places[key] for key in keys], np.int64)
    _check_once(rows, keys, path)
    return rows


def _places(store: RecordStore, keys: Sequence[str], path: str) -> dict[str, int]:
    """Return the record of each key that names any. DataError D254 if a key names several."""
    wanted = set(keys)
    places: dict[str, int] = {}
    for index in range(store.manifest.num_records):
        key = store.key(index)
        if key not in wanted:
            continue
        if key in places:
            what = f"names the record {key!r}, but {places[key]} and {index} have this key"
            raise DataError(254, path, what, FIX_KEYS)
        places[key] = index
    return places


def _check_once(rows: np.ndarray, names: Sequence[str], path: str) -> None:
    """Check that no record is named twice. DataError D254."""
    _, firsts = np.unique(rows, return_index=True)
    if len(firsts) < len(rows):
        again = next(iter(set(range(len(rows))) - set(firsts.tolist())))
        what = f"names the record {names[again][:100]!r} twice"
        raise DataError(254, path, what, "keep one of them")
