"""Parquet files and Hugging Face datasets as a store (extra ``parquet``).

Parquet keeps rows in groups of some 100 images or 100,000 rows of numbers. Each process caches the
groups used last, up to ``cache_mb``. Arrow files, which ``datasets.Dataset.save_to_disk`` writes,
are mapped into memory.
"""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import LABEL, Field, Manifest, Ragged, Records, RecordStore
from framework.errors import ConfigError, DataError, listed, words_of
from framework.store import column_files, folder_store, foreign
from framework.store.files import identify, named_files, sampled_digest
from framework.store.gather import check_range, merged, ragged_of, taken
from framework.system.user_code import needed

STRINGS, LISTS = ("text", "bytes", "file"), ("rows",)
FORMS = {"text": STRINGS, "bytes": STRINGS, "ragged": LISTS, "boxes": LISTS, "points": LISTS}
STATE = "state.json"  # in which ``save_to_disk`` lists the files of a data set
SPLITS = "dataset_dict.json"  # which ``save_to_disk`` writes above one folder per split
# The Hugging Face Hub appends this to the split in a file's name, as in train-00000-of-00002.
NUMBERED = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$")


@final
class ParquetStore(RecordStore):
    """A RecordStore over Parquet or Arrow files with the same columns.

    Images are a column of bytes, or of structs ``{bytes, path}`` as Hugging Face writes them.
    Numbers and lists of a fixed size become raw fields, other lists ragged fields. Texts in the
    field ``label`` are class names, or class numbers if all of them are integers and ``classes``
    does not name them all. A ``ClassLabel`` column has its own names. Page checksums are compared
    if there are any. ``conf/data/parquet.yaml`` describes the options, whose names begin with
    ``group`` in errors.

    ConfigError C161, C162 or C179 for options that do not fit; DataError D101, D102, D103, D109,
    D167, D169 for files and columns that do not fit, D192 for several splits; ResourceError R112
    without pyarrow.
    """

    samples_colors = True

    def __init__(
        self,
        path: str,
        fields: Mapping[str, str] | None = None,
        classes: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        kinds: Mapping[str, str] | None = None,
        cache_mb: int = 512,
        group: str = "data",
    ) -> None:
        foreign.refuse_other(path, "parquet")
        needed("pyarrow", "parquet")
        self.path, self.given, self.classes, self.group = path, fields, classes, group
        self.label_maps, self.cache_mb = tuple(labels or ()), cache_mb
        self.kinds = foreign.checked_kinds(kinds, group)
        self.is_random = False  # whether records are asked for in random order
        self._files = column_files.ColumnFiles(_files_of(path, group), cache_mb)

    def described(self) -> Manifest:
        fields: dict[str, Field] = {}
        for name, column in self._columns.items():
            if column.kind in foreign.OF_STRINGS:
                fields[name] = foreign.field_of_kind("", column.kind)
            elif column.form == "rows":
                rows: Any = None
                for group in range(len(self._files.firsts) - 1):
                    rows = self._group(group).values[name].values.values
                    if len(rows):  # the first list that is not empty decides
                        break
                kind, where = column.kind or foreign.RAGGED, f"{self.path}: column {column.name}"
                value = foreign.of_kind(rows.numpy(), kind, where, self.group)
                fields[name] = foreign.field_of_kind(value, kind)
                if 0 in fields[name].shape:
                    raise DataError(167, where, "has only empty lists", "leave the column out")
            elif column.form in ("array", "name"):
                array = self._group(self._first_group).values[name].values
                if array.dtype.name not in foreign.DTYPES:
                    raise self._not_held(column.name, array.dtype)
                fields[name] = Field(array.dtype.name, array.shape[1:])
            else:
                fix = "correct or remove it; if the column does not hold images, add "
                fix += f"'{self.group}.kinds={{{name}: bytes}}'"
                where, is_map = f"{self.name(0)}: {column.name}", name in self.label_maps
                count = int(self._files.firsts[self._first_group + 1])  # others must be decoded
                read = partial(self._first_value, name)
                fields[name] = folder_store.image_field(where, count, read, is_map, fix)
        foreign.check_label_maps(self.label_maps, fields, self.group)
        _, classes, counts = self._labels
        digest = sampled_digest(self._files.paths)
        source = f"parquet {self.path}"
        return Manifest(len(self), fields, classes, counts, source=source, digest=digest)

    def __len__(self) -> int:
        return int(self._files.firsts[-1])

    @cached_property
    def _columns(self) -> dict[str, column_files.FieldColumn]:
        """The column of each field. ConfigError C162, C179; DataError D167."""
        schema, given = self._files.schema, self.given
        if given is None:
            given = {name: name for name in schema.names}
        foreign.check_fields(given, "{image: image, label: label}", self.group)
        columns: dict[str, column_files.FieldColumn] = {}
        for field, name in given.items():
            if (count := schema.names.count(name)) != 1:
                where, fix = f"{self.group}.fields.{field} = {name}", listed(schema.names)
                what = f"names {count} columns, but must name exactly one"
                raise ConfigError(162, where, what, f"choose from {fix}")
            form = column_files.form_of(schema.field(name).type, str(field) == LABEL)
            if form is None:
                raise self._not_held(name, schema.field(name).type)
            shape = column_files.hugging_face_feature(schema, name).get("shape")  # of ``Array2D``
            if form == "rows" and isinstance(shape, list) and all(type(n) is int for n in shape):
                form = "array"
            kind = self.kinds.get(str(field), "text" if form == "text" else "")
            if kind and form not in FORMS[kind]:
                where = f"{self.group}.kinds.{field} = {kind}"
                what = f"the column {name} is {schema.field(name).type}, which cannot be {kind}"
                raise ConfigError(179, where, what, "correct it")
            columns[str(field)] = column_files.FieldColumn(name, form, kind)
        foreign.check_present(self.kinds, columns, self.group)
        return columns

    def _not_held(self, column: str, kind: Any) -> DataError:
        what = f"the column {column} is {kind}, which a store cannot hold"
        return DataError(167, self.path, what, f"choose others: {self._advice()}")

    def _advice(self, without: str = "") -> str:
        # How to choose the columns that a store can hold, but for one.
        columns = [
            f"{field.name}: {field.name}"
            for field in self._files.schema
            if field.name != without and column_files.form_of(field.type, field.name == LABEL)
        ]
        return f"'{self.group}.fields={{{listed(columns)}}}'"

    @cached_property
    def _labels(self) -> tuple[dict[str, int] | None, list[str], list[int]]:
        """The number of each name of a class, the classes, and how many rows each has.

        None if labels are numbers. No counts if a label numbers no class.
        """
        column, path, group, given = self._columns.get(LABEL), self.path, self.group, self.classes
        is_named = column is not None and column.form == "name"
        occurrences: dict[Any, int] = {}
        if column is not None and column.form in ("array", "name"):
            kind = self._files.schema.field(column.name).type
            if is_named or column_files.library().types.is_integer(kind):
                occurrences = self._files.value_counts(column.name)
        numbers: dict[str, int] | None = {} if is_named else None
        classes: list[str] = []
        if column is None or not occurrences:
            classes = foreign.check_classes((), given, path, group)
        elif is_named:
            names = sorted(map(str, occurrences), key=os.fsencode)
            where = f"{path}: column {column.name}"
            labels, classes = foreign.label_column(names, given, path, lambda _: where, group)
            numbers = dict(zip(names, labels, strict=True))
        else:
            feature = column_files.hugging_face_feature(self._files.schema, column.name)
            own: Any = feature.get("names")
            texts = own if isinstance(own, list) else []
            is_plain = all(isinstance(name, str) and name.isprintable() for name in texts)
            if given is None and texts and is_plain and len(set(texts)) == len(texts):
                given = texts
            if min(occurrences) >= 0 or given is not None:
                classes = foreign.numbered_classes(max(occurrences), given, path, group)
        counts = [0] * len(classes)
        for value, count in occurrences.items():
            number = value if numbers is None else numbers[value]
            if not 0 <= number < len(classes):
                return numbers, classes, []
            counts[number] = count
        return numbers, classes, counts

    def _first_value(self, name: str, index: int) -> Any:
        row = np.array([index])  # of the first group that has any
        return self._taken(name, self._group(self._first_group).values[name], row, row)[0]

    @property
    def _first_group(self) -> int:
        return int(np.searchsorted(self._files.firsts, 0, side="right")) - 1

    @property
    def notes(self) -> tuple[str, ...]:
        """What random order costs if the groups do not fit the cache."""
        group, num_groups = self._first_group, len(self._files.firsts) - 1
        row_bytes = self._group(group).num_bytes / int(self._files.firsts[group + 1])
        total_mb = row_bytes * len(self) / 1e6  # an estimate from the first group
        if not self.is_random or total_mb <= self.cache_mb:
            return ()
        rows = -(-len(self) // num_groups)
        note = (
            f"{self.path}: in random order nearly every record decodes a group of {rows} rows "
            f"({total_mb / num_groups:.0f} MB) again, since {total_mb:,.0f} MB do not fit "
            f"data.cache_mb={self.cache_mb}; add order=block order.block_records={rows}, or pack "
            "it with 'paceline pack input=parquet'"
        )
        return (note,)

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        """Return rows. DataError D167 for arrays of another shape or dtype than the first row's."""
        check_range(indices, len(self))
        places = indices.numpy()
        groups = np.searchsorted(self._files.firsts, places, side="right") - 1
        fields = self.manifest.fields
        spots: list[Tensor] = []
        parts: dict[str, list[Any]] = {name: [] for name in fields}
        for group in np.unique(groups).tolist() or [0]:
            chosen = np.flatnonzero(groups == group)
            spots.append(torch.from_numpy(chosen))
            rows = places[chosen] - self._files.firsts[group]
            for name, column in self._group(group).values.items():
                lot = self._taken(name, column, rows, places[chosen])
                parts[name].append(lot)
                if isinstance(lot, list) or not len(chosen):
                    continue
                array, shape = lot, fields[name].shape
                if isinstance(lot, Ragged):
                    array, shape = lot.values, fields[name].row_shape
                dtype = str(array.dtype).removeprefix("torch.")
                if tuple(array.shape[1:]) != tuple(shape) or dtype != fields[name].dtype:
                    what = f"is {dtype} {tuple(array.shape[1:])}, but the first row has "
                    what += f"{fields[name].dtype} {tuple(shape)}"
                    fix = f"give all rows one shape, or choose columns: {self._advice()}"
                    where = f"{self.name(int(places[chosen[0]]))}: {name}"
                    raise DataError(167, where, what, fix)
        order = torch.argsort(torch.cat(spots))
        records: Records = {}
        for name, field in fields.items():
            records[name] = merged(parts[name], order)
            if field.kind in foreign.OF_STRINGS:
                strings = [np.frombuffer(data, np.uint8) for data in records[name]]
                records[name] = ragged_of(strings, field)
        return records

    def _taken(
        self, name: str, column: column_files.ColumnValues, rows: np.ndarray, indices: np.ndarray
    ) -> Any:
        lot, nulls = column
        if nulls is not None and nulls[rows].any():
            column_name, form, _ = self._columns[name]
            what = "has no value"
            if form == "file":
                what = "has no bytes; its image lies in a file of its own"
            where = f"{self.name(int(indices[nulls[rows].argmax()]))}: {column_name}"
            fix = f"fill it in or leave the row out, or choose columns: {self._advice(column_name)}"
            raise DataError(162, where, what, fix)
        if isinstance(lot, np.ndarray):
            return torch.from_numpy(lot[rows])
        if isinstance(lot, column_files.Strings):
            spans = zip(lot.starts[rows].tolist(), lot.stops[rows].tolist(), strict=True)
            return [lot.buffer[start:stop] for start, stop in spans]
        if not len(lot.values):  # empty lists do not tell the size of a row
            row_shape = self.manifest.fields[name].row_shape
            lot = lot._replace(values=lot.values.reshape(0, *row_shape))
        return taken(lot, torch.from_numpy(rows))

    def _group(self, number: int) -> column_files.RowGroup:
        return self._files.group(number, self._columns, self._labels[0])

    def key(self, index: int) -> str:
        file, row = self._files.row(index)
        return f"{os.path.basename(file)}:{row}"

    def name(self, index: int) -> str:
        file, row = self._files.row(index)
        return f"{file}: row {row}"

    def file_of(self, index: int) -> str:
        return self._files.row(index)[0]

    def check(self) -> None:
        for path, identity in self._files.identities.items():
            identify(path, identity)

    def close(self) -> None:
        self._files.close()


def _files_of(path: str, group: str) -> list[str]:
    key = "data.train" if group == "data" else "input.path"
    if not os.path.isdir(path):
        return named_files(path, foreign.COLUMNS)
    if os.path.isfile(os.path.join(path, SPLITS)):
        names = [entry.name for entry in os.scandir(path) if entry.is_dir()]
        raise foreign.several_splits(path, names, lambda split: f"{key}={path}/{split}")
    state = os.path.join(path, STATE)
    if os.path.isfile(state):  # files that it does not list, such as caches, are ignored
        try:
            with open(state, "rb") as file:
                entries = json.loads(file.read(column_files.MOST_JSON_BYTES))["_data_files"]
            names = [str(entry["filename"]) for entry in entries]
            if not names or any(os.path.basename(name) != name for name in names):
                raise ValueError("must list one or more files, all directly in this folder")
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(102, state, f"damaged ({words_of(error)})", "save it again") from error
        return [os.path.join(path, name) for name in names]
    paths = named_files(path, foreign.COLUMNS)
    stems = [os.path.splitext(os.path.relpath(file, path))[0] for file in paths]
    splits = {
        NUMBERED.sub("", stem)
        for stem in stems
        if NUMBERED.search(stem) or os.path.basename(stem) in foreign.USUAL_SPLITS
    }
    if len(splits) > 1:
        raise foreign.several_splits(path, splits, lambda split: f"{key}={path}/{split}*")
    return paths
