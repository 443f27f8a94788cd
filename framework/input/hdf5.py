"""HDF5 files that anybody wrote: records along the first axis of data sets, or one per data set."""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from framework.contracts.class_labels import is_class_number
from framework.contracts.records import LABEL, Chunk, Manifest, NumberKeys
from framework.errors import ConfigError, DataError, listed
from framework.input import rows as of_rows
from framework.input.rows import Row, RowInput
from framework.media import header, sound_video
from framework.store import foreign
from framework.store.files import named_files
from framework.store.hdf5_store import Dataset, ForeignHDF5, is_column, suggested_fields

WILD = "*"


class _Node(NamedTuple):
    file: ForeignHDF5
    name: str
    dataset: Dataset


class _Table(NamedTuple):
    """Where the values of each field are."""

    columns: dict[str, list[_Node]]  # a data set per file, or per record
    keys: list[str] | None  # of the records; None: they lie along the first axis
    starts: list[int]  # the number of each node's first record, and the number of all


@final
class HDF5Input(RowInput):
    """Records from one file or several.

    A name without ``*`` is a data set with a value per record along its first axis. A name with
    ``*`` is a data set per record, whose key is what the stars stand for. Bytes of image files
    become images, arrays with different numbers of rows are ragged, and the texts of ``label`` are
    classes. ``conf/input/hdf5.yaml`` describes the options.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        fields: Mapping[str, str] | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.paths = [path] if isinstance(path, str) else list(map(str, path))
        self.path = ", ".join(self.paths)
        self.classes, self.given = classes, fields
        if fields is not None:
            self.given = of_rows.text_by_field("fields", fields, '{audio: "*/*"}')
            if len({WILD in name for name in self.given.values()}) > 1:
                what = "names of one record (with *) and of all records exclude each other"
                raise ConfigError(162, f"input.fields = {fields}", what, "choose one of the two")

    @cached_property
    def files(self) -> list[ForeignHDF5]:
        paths = [path for given in self.paths for path in named_files(given, (".h5", ".hdf5"))]
        return list(map(ForeignHDF5, paths))

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """The name of each field's data sets. DataError D112 if there is none, D192."""
        fields = self.given or suggested_fields(self.files[0])
        if not fields:
            what = "no dataset of numbers or texts" + self._not_read
            raise DataError(112, self.files[0].path, what, "read it with input=function")
        return fields

    @property
    def notes(self) -> tuple[str, ...]:
        """Which fields were chosen and which data sets left out, if the user did not say."""
        if self.given is not None:
            wild = any(WILD in name for name in self.fields.values())
            return (f"{self.path}: {self._not_read[2:]}",) if wild and self._not_read else ()
        known = {node.name for nodes in self.table.columns.values() for node in nodes}
        names = dict.fromkeys(name for file in self.files for name in file.listing.datasets)
        note = f"records are taken to be '{foreign.fields_word(self.fields)}'"
        if left := [name for name in names if name not in known]:
            note += f"; left out: {listed(left)}"
        return (note + self._not_read,)

    @cached_property
    def _not_read(self) -> str:
        """What is not read for safety, for a message; "" for nothing."""
        outside = [item for file in self.files for item in file.listing.outside.items()]
        left = [f"{name} ({why})" for name, why in outside]
        return f"; not read: {listed(left)}" if left else ""

    @cached_property
    def table(self) -> _Table:
        """Find the values. DataError D110, D111, D112, D160, D163, D167."""
        columns: dict[str, list[_Node]] = {field: [] for field in self.fields}
        if any(WILD in name for name in self.fields.values()):
            keys: list[str] = []
            for file in self.files:
                matches = {field: _matches(file, name) for field, name in self.fields.items()}
                names = of_rows.shared_names(file.path, matches)
                keys += names
                for field, match in matches.items():
                    columns[field] += [match[name] for name in names]
            if not keys:
                some = listed(self.files[0].listing.names[:10])
                what = f"no data set is as input.fields says; the first names: {some}"
                raise DataError(110, self.path, what + self._not_read, "correct input.fields")
            return _Table(columns, keys, list(range(len(keys) + 1)))
        starts = [0]
        for file in self.files:
            arrays = {name: own for name, own in file.listing.datasets.items() if is_column(own)}
            lengths: dict[str, int] = {}
            for field, given in self.fields.items():
                name = given.strip("/")
                if name not in arrays:
                    what = f"has no array {name}, but {listed(list(arrays)) or 'none'}"
                    raise DataError(112, file.path, what + self._not_read, "correct input.fields")
                columns[field].append(_Node(file, name, arrays[name]))
                lengths[field] = arrays[name].shape[0]
                first = columns[field][0]
                mine, theirs = (
                    f"{own.kind} {own.dtype} {own.shape[1:]}"
                    for own in (arrays[name], first.dataset)
                )
                if mine != theirs:
                    what = f"{field} is {theirs} in {first.file.path} and {mine} here"
                    raise DataError(167, file.path, what, "pack them one by one")
            starts.append(starts[-1] + of_rows.check_same_length(file.path, lengths))
        return _Table(columns, None, starts)

    def described(self) -> Manifest:
        num_records, classes = self.table.starts[-1], self.labels[1]
        return Manifest(num_records, {}, classes, source=f"hdf5 {self.path}")

    @cached_property
    def labels(self) -> tuple[np.ndarray | None, list[str]]:
        """The label of each record if they are texts, and the classes."""
        largest = -1
        if LABEL in self.fields and LABEL not in self.kinds:
            count = self.table.starts[-1]
            first = _first(self._own_values(LABEL, 0, 1))
            if isinstance(first, str):
                texts = self._own_values(LABEL, 0, count)
                numbers, classes = foreign.label_column(texts, self.classes, self.path, self.name)
                return np.array(numbers, np.int64), classes
            if isinstance(first, np.ndarray) and is_class_number(first.dtype.kind, first.shape):
                largest = of_rows.largest_label(np.asarray(self._own_values(LABEL, 0, count)))
        return None, foreign.numbered_classes(largest, self.classes, self.path)

    @cached_property
    def all_kinds(self) -> Mapping[str, str]:
        ragged: dict[str, str] = {}
        for name, value in self.row(0).items():
            nodes = self.table.columns[name]
            is_ragged = nodes[0].dataset.kind == "rows"
            if self.table.keys is not None:
                is_ragged = len({node.dataset.shape[:1] for node in nodes}) > 1
            if is_ragged and isinstance(value, np.ndarray):
                ragged[name] = foreign.RAGGED
        return {**ragged, **self.kinds}

    def row(self, index: int) -> Row:
        return {name: _first(self._values(name, index, index + 1)) for name in self.fields}

    def read(self, start: int, stop: int) -> Chunk:
        """Return the records. Numbers along the first axis are read by one slice per data set."""
        keys: Sequence[str] = NumberKeys(start, stop)
        if self.table.keys is not None:
            keys = self.table.keys[start:stop]
        fields = self.manifest.fields
        records: dict[str, Any] = dict.fromkeys(fields)
        others: dict[str, Any] = {}
        for name in fields:
            values = self._values(name, start, stop)
            if isinstance(values, np.ndarray) and name not in self.kinds:
                records[name] = foreign.native(values)
            else:
                others[name] = values
        if others:
            kinds = self.all_kinds
            names = [self.name(index) for index in range(start, stop)]
            rows = [
                of_rows.typed_row(dict(zip(others, values, strict=True)), kinds, where)
                for where, *values in zip(names, *others.values(), strict=True)
            ]
            of_others = {name: fields[name] for name in others}
            records |= of_rows.chunk_of(rows, keys, of_others, names).records
        return Chunk(records, keys)

    def _values(self, name: str, start: int, stop: int) -> Any:
        """Return an array [n, *shape] of numbers, or a list of values as ``field_of`` has them."""
        if name == LABEL and self.labels[0] is not None:
            return self.labels[0][start:stop]
        return self._own_values(name, start, stop)

    def _own_values(self, name: str, start: int, stop: int) -> Any:
        """Return texts as ``str``, image files as ``bytes``, numbers as arrays."""
        nodes, keys, starts = self.table
        values: list[Any] = []
        if keys is not None:
            values = [node.file.value(node.name) for node in nodes[name][start:stop]]
        else:
            parts: list[Any] = []
            for node, first, last in zip(nodes[name], starts, starts[1:], strict=False):
                begin, end = max(start, first), min(stop, last)
                if begin < end:
                    parts.append(node.file.read(node.name, begin - first, end - first))
            if nodes[name][0].dataset.kind == "numbers":
                return np.concatenate(parts) if len(parts) > 1 else parts[0]
            values = [value for part in parts for value in part]
        kind = self.kinds.get(name)
        are_texts = nodes[name][0].dataset.kind == "text" and kind != "bytes"
        for place, value in enumerate(values):
            if are_texts and isinstance(value, bytes):
                where = f"{self.name(start + place)}: {name}"
                values[place] = foreign.text_of(value, name, where, "input")
            elif isinstance(value, np.ndarray):
                values[place] = foreign.native(value)
                if value.dtype == np.uint8 and value.ndim == 1 and kind in (None, "bytes"):
                    data = value.tobytes()
                    if kind == "bytes" or header.is_image(data) or sound_video.is_sound(data):
                        values[place] = data
        return values

    def key(self, index: int) -> str:
        return str(index) if self.table.keys is None else self.table.keys[index]

    def name(self, index: int) -> str:
        path = self.item_files(index)[0]
        if self.table.keys is not None:
            return f"{path}: {self.table.keys[index]}"
        starts = self.table.starts
        return f"{path}: record {index - starts[bisect_right(starts, index) - 1]}"

    def item_files(self, index: int) -> Sequence[str]:
        first = next(iter(self.table.columns.values()))
        return (first[bisect_right(self.table.starts, index) - 1].file.path,)

    def range_files(self, start: int, stop: int) -> Sequence[str] | None:
        columns, keys, starts = self.table
        are_numbers = all(nodes[0].dataset.kind == "numbers" for nodes in columns.values())
        if keys is not None or self.kinds or not are_numbers:
            return None
        spans = zip(self.files, starts, starts[1:], strict=False)
        return [file.path for file, first, last in spans if first < stop and start < last]


def _matches(file: ForeignHDF5, pattern: str) -> dict[str, _Node]:
    """Return the nodes of a file that a pattern names, by what its stars stand for."""
    parts = map(re.escape, pattern.strip("/").split(WILD))
    expression = re.compile("([^/]*)".join(parts), re.DOTALL)
    names = list(file.listing.datasets)
    places = of_rows.places_of(file.path, names, expression, lambda *stars: "/".join(stars))
    nodes = [
        _Node(file, names[place], file.listing.datasets[names[place]]) for place in places.values()
    ]
    return dict(zip(places, nodes, strict=True))


def _first(values: Any) -> Any:
    return np.asarray(values[0]) if isinstance(values, np.ndarray) else values[0]
