"""Records made by the user's own function, from each item: chunking and feature extraction happen once, when packing."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from framework.contracts.records import Chunk, Manifest
from framework.errors import ConfigError, DataError, UserRecordError, words_of
from framework.input.array_values import Row, chunk_of, first_fields
from framework.input.file_items import find_files, named_files
from framework.input.label import check_classes
from framework.system.user_code import user_error

MakeRecords = Callable[[Any], Iterable[dict[str, Any]]]


@final
class FunctionInput:
    """``call(item)`` gives zero or more records: dicts of field -> an image file's ``bytes``, an array, or a number.

    It must be pure: the same item, the same records, in any process. ``function``: its name, for messages; ``call``: the same,
    resolved. Items: the files that ``path`` stands for (a file, a folder, or a pattern; each a path), or ``items``: a list of
    anything, or a number n for 0..n-1. The first record says which fields there are. An item's only or first record has the item
    as key, the next ones ``item#1``, ``item#2``. ``classes``: names of the classes that ``label`` numbers.
    """

    def __init__(
        self,
        function: str,
        call: MakeRecords,
        path: str | None,
        items: Sequence[Any] | int | None,
        classes: Sequence[str] | None,
    ) -> None:
        if (path is None) == (items is None):
            raise ConfigError(
                163, "input.path, input.items", "give one of the two", "name files, or list items"
            )
        self.function, self.call, self.path, self.given = function, call, path, items
        self.classes = check_classes((), classes, function) if classes else []

    @cached_property
    def items(self) -> list[tuple[str, Any]]:
        """(key, what the function is called with). DataError D101, D110."""
        if self.path is not None and os.path.isdir(self.path):
            found = [(name, os.path.join(self.path, name)) for name in find_files(self.path).names]
        elif self.path is not None:
            found = [(path, path) for path in named_files(self.path)]
        else:
            given = range(self.given) if isinstance(self.given, int) else self.given or ()
            found = [(str(item), item) for item in given]
        if not found:
            raise DataError(110, self.path or "input.items", "no item", "give at least one")
        return found

    @cached_property
    def manifest(self) -> Manifest:
        fields = first_fields(len(self.items), self._rows, self.name)
        return Manifest(
            len(self.items),
            fields,
            self.classes,
            source=f"function {self.function} {self.path or ''}".strip(),
        )

    def read(self, start: int, stop: int) -> Chunk:
        rows: list[Row] = []
        keys: list[str] = []
        for index in range(start, stop):
            found = self._rows(index)
            rows += found
            key = self.items[index][0]
            keys += [f"{key}#{number}" if number else key for number in range(len(found))]
        return chunk_of(rows, keys, self.manifest.fields, keys.__getitem__)

    def _rows(self, index: int) -> list[Row]:
        """DataError D168, or U100 with the user's line, for whatever the function raises; D167 for what is no record."""
        try:
            found = self.call(self.items[index][1])
            rows = [found] if isinstance(found, dict) else list(found)
            return [{str(field): _value(value) for field, value in row.items()} for row in rows]
        except DataError:
            raise
        except (Exception, SystemExit) as error:
            fix, packages = (
                "mend the function, or remove the item",
                (f"{self.function.partition('.')[0]}.",),
            )
            fault = user_error(error, packages, self.name(index), fix, UserRecordError)
            if fault is not None:
                raise fault from error
            what = f"{self.function} raised {type(error).__name__}: {words_of(error)}"
            raise DataError(168, self.name(index), what, fix) from error

    def name(self, index: int) -> str:
        return str(self.items[index][1])


def _value(value: Any) -> Any:
    """Image bytes as ``bytes``, numbers and arrays (also torch's) as numpy's, contiguous and in this machine's byte order."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    array = np.asarray(value)
    return np.array(array, array.dtype.newbyteorder("="), order="C")
