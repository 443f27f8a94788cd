"""Records that the user's own function makes from each item, once, when packing."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from framework.contracts.records import Manifest
from framework.errors import ConfigError, DataError, PacelineError, UserRecordError, words_of
from framework.input.rows import Row, RowInput
from framework.store import files, foreign
from framework.system.user_code import digest_of, user_error

KEY = "key"  # of a record, if the function gives it
MakeRecords = Callable[[Any], dict[str, Any] | Iterable[dict[str, Any]]]


@final
@dataclass(eq=False)
class FunctionInput(RowInput):
    """Records from ``call(item)``: a dict, or zero or more dicts, of field -> value.

    The function must be pure. A text under ``key`` is the record's key. Otherwise an item's first
    record has the item as key, the next ones ``item#1``, ``item#2``. ``function`` is its name, for
    messages. ``conf/input/function.yaml`` describes the options.
    """

    function: str
    call: MakeRecords
    path: str | None
    items: Sequence[Any] | int | None
    classes: Sequence[str] | None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.items is None):
            where = "input.path, input.items"
            raise ConfigError(163, where, "give one of the two", "name files, or list items")
        self.classes = foreign.check_classes((), self.classes, self.function)
        self.own_code = digest_of(self.call, (self.function.partition(".")[0],))

    @cached_property
    def keyed_items(self) -> list[tuple[str, Any]]:
        """The key of each item, and the function's argument. DataError D101, D110."""
        if self.path is not None:
            root = os.path.join(self.path, "")  # of a folder
            return [(path.removeprefix(root), path) for path in files.named_files(self.path)]
        given = range(self.items) if isinstance(self.items, int) else self.items
        if not given:
            raise DataError(110, "input.items", "no item", "give at least one")
        return [(str(item), item) for item in given]

    def described(self) -> Manifest:
        source = f"function {self.function} {self.path or ''}".strip()
        return Manifest(len(self.keyed_items), {}, self.classes or [], source=source)

    def rows(self, index: int) -> list[tuple[str, Row]]:
        key, item = self.keyed_items[index]
        rows = rows_of(self.call, item, self.function, self.name(index), "remove the item")
        keyed: list[tuple[str, Row]] = []
        for number, row in enumerate(rows):
            own = f"{key}#{number}" if number else key
            if isinstance(row.get(KEY), str):
                own = row.pop(KEY)
            keyed.append((own, row))
        return keyed

    def name(self, index: int) -> str:
        return str(self.keyed_items[index][1])

    def item_files(self, index: int) -> Sequence[str]:
        item = self.keyed_items[index][1]
        return (item,) if isinstance(item, str) else ()


def rows_of(call: MakeRecords, argument: Any, function: str, where: str, fix: str) -> list[Row]:
    """Return the records, a dict or several, that a user's function makes of ``argument``.

    UserRecordError U100 for an error of the function, DataError D168 for one of a library; errors
    of ours stay. ``where`` names the argument, and ``fix`` is an alternative to a correction.
    """
    try:
        made = call(argument)
        rows = [made] if isinstance(made, dict) else list(made)
        return [{str(name): stored_value(value) for name, value in row.items()} for row in rows]
    except PacelineError:
        raise
    except (Exception, SystemExit) as error:
        fix = f"correct the function, or {fix}"
        packages = (f"{function.partition('.')[0]}.",)
        fault = user_error(error, packages, where, fix, UserRecordError)
        if fault is None:
            what = f"{function} raised {type(error).__name__}: {words_of(error)}"
            fault = DataError(168, where, what, fix)
        raise fault from error


def stored_value(value: Any) -> Any:
    """Return texts and bytes as they are, numbers and arrays, also torch's, as native arrays."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    array = np.asarray(value)
    return np.array(array, array.dtype.newbyteorder("="), order="C")
