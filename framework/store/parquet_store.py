"""Parquet files and Hugging Face datasets as a store, through pyarrow (extra ``parquet``).

Parquet keeps rows in groups of some 100 images or 100,000 rows of numbers. A group can only be
decoded as a whole. Each process caches the most recently used groups, up to ``cache_mb``. If the
data is larger than the cache and is read in random order, nearly every record decodes a group. With
100 images of 100 kB per group, each record costs 10 MB of decoding. With ``order=block`` each group
is decoded about once per epoch. A packed store has no groups at all.

Arrow files, which ``datasets.Dataset.save_to_disk`` writes, are not compressed. They are mapped
into memory, so that any row can be read alone.
"""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import LABEL, Field, Manifest, Ragged, Records
from framework.errors import ConfigError, DataError, listed, words_of
from framework.media.decode import BadImage, shared_channels
from framework.store.column_files import (
    MOST_JSON_BYTES,
    ColumnFiles,
    ColumnValues,
    FieldColumn,
    RowGroup,
    form_of,
    hugging_face_feature,
    library,
)
from framework.store.files import named_files, sampled_digest
from framework.store.folder_store import FILES
from framework.store.foreign import (
    COLUMNS,
    MOST_FIELDS,
    USUAL_SPLITS,
    example_split,
    refuse_other,
    several_splits,
)
from framework.store.gather import merged, ragged_of, taken
from framework.store.values import (
    DTYPES,
    OF_STRINGS,
    RAGGED,
    check_classes,
    check_label_maps,
    check_present,
    checked_kinds,
    field_of_kind,
    label_column,
    numbered_classes,
    of_kind,
)
from framework.system.extras import needed

STRINGS = ("text", "bytes", "file")
LISTS = ("rows",)
FORMS = {"text": STRINGS, "bytes": STRINGS, "ragged": LISTS, "boxes": LISTS, "points": LISTS}
# ``save_to_disk`` lists the files of a data set here.
STATE = "state.json"
# ``save_to_disk`` writes this file above one folder per split.
SPLITS = "dataset_dict.json"
# The Hugging Face Hub appends this to the split in a file's name, as in train-00000-of-00002.
NUMBERED = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$")


@final
class ParquetStore:
    """A RecordStore over Parquet or Arrow files with the same columns.

    Images are a column of bytes, or of structs ``{bytes, path}`` as Hugging Face writes them.
    Numbers and lists of a fixed size become raw fields, other lists become ragged fields, and texts
    stay texts. Texts in the field ``label`` are class names, or class numbers if all of them are
    integers and ``classes`` does not name them all. A ``ClassLabel`` column has its own names.

    Parquet's page checksums are compared if they were written. Records have no checksums, so
    ``damaged`` returns an empty list.

    Args:
        path: A file, a folder of files of one split, or a pattern.
        fields: The column of each field; None: all columns.
        classes: All classes in the order of their numbers; None: those of the file.
        labels: The fields that are label maps.
        kinds: The kind of a field, by its name: ragged, boxes or points for a column of lists,
            bytes or text for a column of bytes or texts.
        cache_mb: The size of each process's cache of decoded groups, in 10**6 bytes. The group used
            last always stays.
        group: The configuration group of these options, for messages: ``data`` or ``input``.

    Raises:
        ConfigError: C161, C162 or C179 for options that do not fit.
        DataError: D101 if there is no file; D102 for a damaged one; D103 for another format; D109
            if there is no row; D167 for a column that a store cannot hold; D169 if the columns of
            the files differ; D192 if a folder holds several splits.
        ResourceError: R112 if pyarrow is not installed.
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
        refuse_other(path, "parquet")
        needed("pyarrow", "parquet")
        self.path = path
        self.given = fields
        self.classes = classes
        self.label_maps = tuple(labels or ())
        self.kinds = checked_kinds(kinds, group)
        self.cache_mb = cache_mb
        self.group = group
        self.is_random = False  # whether records are asked for in random order
        self._files = ColumnFiles(_column_files(path, group), cache_mb)

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @cached_property
    def _manifest(self) -> Manifest:
        fields = {name: self._field(name) for name in self._columns}
        check_label_maps(self.label_maps, fields, self.group)
        classes, numbers = self._class_names, self._numbers
        class_counts = [0] * len(classes)
        for value, count in self._tally.items():
            number = value if numbers is None else numbers[value]
            if not 0 <= number < len(classes):
                class_counts = []
                break
            class_counts[number] = count
        digest = sampled_digest(self._files.paths)
        source = f"parquet {self.path}"
        return Manifest(len(self), fields, classes, class_counts, source=source, digest=digest)

    def __len__(self) -> int:
        return int(self._files.firsts[-1])

    @cached_property
    def _columns(self) -> dict[str, FieldColumn]:
        """The column of each field.

        Raises:
            ConfigError: C162 if ``fields`` is wrong, C179 if ``kinds`` does not fit.
            DataError: D167 if a store cannot hold a column.
        """
        schema = self._files.schema
        given: Any = self.given
        if given is None:
            given = {name: name for name in schema.names}
        if not isinstance(given, Mapping) or not given:
            fix = f"give {self.group}.fields={{image: image, label: label}}"
            what = "must map at least one field to a name"
            raise ConfigError(162, f"{self.group}.fields = {given}", what, fix)
        columns: dict[str, FieldColumn] = {}
        for field, name in given.items():
            if schema.names.count(name) != 1:
                what = f"names {schema.names.count(name)} columns, but must name exactly one"
                fix = f"choose from {listed(schema.names)}"
                raise ConfigError(162, f"{self.group}.fields.{field} = {name}", what, fix)
            form = form_of(schema.field(name).type, str(field) == LABEL)
            if form is None:
                what = f"the column {name} is {schema.field(name).type}, which a store cannot hold"
                raise DataError(167, self.path, what, f"choose others: {self._advice}")
            shape = hugging_face_feature(schema, name).get("shape")  # of its ``Array2D``
            if form == "rows" and isinstance(shape, list) and all(type(n) is int for n in shape):
                form = "array"
            kind = self.kinds.get(str(field), "text" if form == "text" else "")
            if kind and form not in FORMS[kind]:
                where = f"{self.group}.kinds.{field} = {kind}"
                what = f"the column {name} is {schema.field(name).type}, which cannot be {kind}"
                raise ConfigError(179, where, what, "correct it")
            columns[str(field)] = FieldColumn(name, form, kind)
        check_present(self.kinds, columns, self.group)
        return columns

    @property
    def _advice(self) -> str:
        """How to choose the columns that a store can hold."""
        return self._choice("")

    def _choice(self, without: str) -> str:
        """Return how to choose the columns that a store can hold, but for one."""
        schema = self._files.schema
        names = [name for name in schema.names if name != without]
        names = [name for name in names if form_of(schema.field(name).type, name == LABEL)]
        shown = names[:MOST_FIELDS]
        chosen = ", ".join(f"{name}: {name}" for name in shown) or "image: image"
        more = f" and {len(names) - len(shown)} more columns" if len(shown) < len(names) else ""
        return f"'{self.group}.fields={{{chosen}}}'{more}"

    @cached_property
    def _tally(self) -> dict[Any, int]:
        """The count of each value in the label's column.

        {} without labels that are integers or texts, or if they have too many values.
        """
        column = self._columns.get(LABEL)
        if column is None or column.form not in ("array", "name"):
            return {}
        kind = self._files.schema.field(column.name).type
        if column.form == "array" and not library().types.is_integer(kind):
            return {}
        return self._files.tally(column.name)

    @cached_property
    def _numbers(self) -> dict[str, int] | None:
        """The number of each name of a class; None if labels are numbers."""
        if LABEL not in self._columns or self._columns[LABEL].form != "name":
            return None
        names = sorted(map(str, self._tally), key=os.fsencode)
        return dict(zip(names, self._named(names)[0], strict=True)) if names else {}

    def _named(self, names: list[str]) -> tuple[list[int], list[str]]:
        """Return the number of each name of a class, and the classes."""
        where = f"{self.path}: column {self._columns[LABEL].name}"
        return label_column(names, self.classes, self.path, lambda _: where, self.group)

    @cached_property
    def _class_names(self) -> list[str]:
        """The classes in the order of their numbers."""
        if not self._tally:
            return check_classes((), self.classes, self.path, self.group)
        if self._numbers is not None:
            return self._named(list(self._numbers))[1]
        classes = self.classes
        if classes is None:
            names: Any = hugging_face_feature(self._files.schema, self._columns[LABEL].name)
            classes = _distinct_texts(names.get("names"))
        if min(self._tally) < 0 and classes is None:
            return []
        return numbered_classes(max(self._tally), classes, self.path, self.group)

    def _field(self, name: str) -> Field:
        """Return the Field of a column.

        The first row decides the dtype and shape of arrays, and the channels of images.
        """
        column = self._columns[name]
        if column.kind in OF_STRINGS:
            return field_of_kind("", column.kind)
        if column.form == "rows":  # the first list that is not empty decides
            rows: Any = None
            for group in range(len(self._files.starts)):
                rows = self._group(group).values[name].values.values
                if len(rows):
                    break
            kind, where = column.kind or RAGGED, f"{self.path}: column {column.name}"
            field = field_of_kind(of_kind(rows.numpy(), kind, where, self.group), kind)
            if 0 in field.shape:
                raise DataError(167, where, "has only empty lists", "leave the column out")
            return field
        values = self._value(name, 0)
        if column.form in ("array", "name"):
            if values.dtype.name not in DTYPES:
                what = f"the column {column.name} is {values.dtype}, which a store cannot hold"
                raise DataError(167, self.path, what, f"choose others: {self._advice}")
            return Field(values.dtype.name, values.shape[1:])
        if name in self.label_maps:
            return Field("uint8", (1, None, None), "image", "labels")
        try:
            rows = int(self._files.firsts[self._first_group + 1])  # others would have to be read
            channels = shared_channels(rows, lambda row: self._value(name, row)[0])
            return Field("uint8", (channels, None, None), "image")
        except (BadImage, ValueError) as error:
            what = f"not a readable image ({error})"
            fix = (
                f"correct or remove it; if the column does not hold images, add "
                f"'{self.group}.kinds={{{name}: bytes}}'"
            )
            raise DataError(106, f"{self.name(0)}: {column.name}", what, fix) from error

    def _value(self, name: str, index: int) -> Any:
        """Return one of the rows of the first group that has any, as an array or a list of one."""
        row = np.array([index])
        return self._taken(name, self._group(self._first_group).values[name], row, row)

    @property
    def _first_group(self) -> int:
        return int(np.searchsorted(self._files.firsts, 0, side="right")) - 1

    @property
    def notes(self) -> tuple[str, ...]:
        """Columns of paths, and what random order costs if the groups do not fit the cache."""
        notes: list[str] = []
        for field, column in self._columns.items():
            if column.form != "text" or field in self.kinds:
                continue
            text = ""
            with suppress(DataError):  # reading the row will say what is wrong with it
                text = bytes(self._value(field, 0)[0]).decode(errors="replace")
            if text.lower().endswith(FILES):
                notes.append(
                    f"{self.path}: the column {column.name} holds paths of files, such as "
                    f"{text[:100]!r}, and stays text; to pack the files, write the table with "
                    "pandas' to_csv('table.csv', index=False), then 'paceline pack input=list "
                    "input.path=table.csv'"
                )
        if not self.is_random:
            return tuple(notes)
        group = self._first_group
        row_bytes = self._group(group).num_bytes / int(self._files.firsts[group + 1])
        total = row_bytes * len(self)  # an estimate from the first group
        if total > self.cache_mb * 10**6:
            num_groups = len(self._files.firsts) - 1
            rows, mean_mb = -(-len(self) // num_groups), total / num_groups / 1e6
            notes.append(
                f"{self.path}: in random order nearly every record decodes a group of {rows} rows "
                f"({mean_mb:.0f} MB) again, since {total / 1e6:,.0f} MB do not fit data.cache_mb="
                f"{self.cache_mb}; add order=block order.block_records={rows}, or pack it with "
                "'paceline pack input=parquet'"
            )
        return tuple(notes)

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        places = indices.numpy()
        count = len(self)
        if len(places) and not 0 <= places.min() <= places.max() < count:
            raise IndexError(f"rows {places.min()}..{places.max()} of {count}")
        groups = np.searchsorted(self._files.firsts, places, side="right") - 1
        fields = self.manifest.fields
        spots: list[Tensor] = []
        parts: dict[str, list[Any]] = {name: [] for name in fields}
        records: Records = {}
        for group in np.unique(groups).tolist() or [0]:
            chosen = np.flatnonzero(groups == group)
            spots.append(torch.from_numpy(chosen))
            rows = places[chosen] - self._files.firsts[group]
            for name, values in self._group(group).values.items():
                lot = self._taken(name, values, rows, places[chosen])
                self._check(name, lot, places[chosen])
                if not isinstance(lot, np.ndarray):
                    parts[name].append(lot)
                    continue
                if name not in records:
                    records[name] = torch.from_numpy(
                        np.empty((len(places), *lot.shape[1:]), lot.dtype)
                    )
                records[name].numpy()[chosen] = lot
        order = torch.argsort(torch.cat(spots))
        for name, field in fields.items():
            if parts[name]:
                records[name] = merged(parts[name], order)
            if field.kind in OF_STRINGS:
                strings = [np.frombuffer(data, np.uint8) for data in records[name]]
                records[name] = ragged_of(strings, field)
        return {name: records[name] for name in fields}

    def _check(self, name: str, values: Any, indices: np.ndarray) -> None:
        """Raise DataError D167 for arrays of another shape or dtype than the first row's."""
        if isinstance(values, list) or not len(indices):
            return
        field = self.manifest.fields[name]
        array, shape = values, field.shape
        if isinstance(values, Ragged):
            array, shape = values.values.numpy(), field.row_shape
        if array.shape[1:] != tuple(shape) or array.dtype.name != field.dtype:
            what = f"is {array.dtype} {array.shape[1:]}, but the first row has "
            what += f"{field.dtype} {tuple(shape)}"
            fix = f"give all rows one shape, or choose columns: {self._advice}"
            raise DataError(167, f"{self.name(int(indices[0]))}: {name}", what, fix)

    def _taken(self, name: str, values: ColumnValues, rows: np.ndarray, indices: np.ndarray) -> Any:
        """Return some rows of a group's field. DataError D162 for a null."""
        if values.nulls is not None and values.nulls[rows].any():
            column, form, _ = self._columns[name]
            what = "has no value"
            if form == "file":
                what = "has no bytes; its image lies in a file of its own"
            where = f"{self.name(int(indices[values.nulls[rows].argmax()]))}: {column}"
            advice = self._choice(column)
            fix = f"fill it in or leave the row out, or choose columns: {advice}"
            raise DataError(162, where, what, fix)
        if isinstance(values.values, np.ndarray):
            return values.values[rows]
        if isinstance(values.values, Ragged):
            lists = values.values
            if not len(lists.values):  # empty lists do not tell the size of a row
                row_shape = self.manifest.fields[name].row_shape
                lists = lists._replace(values=lists.values.reshape(0, *row_shape))
            return taken(lists, torch.from_numpy(rows))
        return values.values.taken(rows)

    def _group(self, number: int) -> RowGroup:
        return self._files.group(number, self._columns, self._numbers)

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return []  # checksums of pages are compared while they are decoded

    def key(self, index: int) -> str:
        file, row = self._files.row(index)
        return f"{os.path.basename(file)}:{row}"

    def name(self, index: int) -> str:
        file, row = self._files.row(index)
        return f"{file}: row {row}"

    def file_of(self, index: int) -> str:
        """Return the path of the file that holds a row."""
        return self._files.row(index)[0]

    def check(self) -> None:
        self._files.check()

    def close(self) -> None:
        self._files.close()


def _distinct_texts(names: Any) -> list[str] | None:
    """Return the names of a ClassLabel; None if they are not different texts."""
    try:
        "".join(names).encode()  # ValueError for half characters, which cannot be printed
    except (ValueError, TypeError):
        return None
    return names if isinstance(names, list) and len(set(names)) == len(names) else None


def _column_files(path: str, group: str) -> list[str]:
    """Return the files of a data set.

    Raises:
        DataError: D101 if there is none, D102 if their list is damaged, D192 for several splits.
    """
    key = "data.train" if group == "data" else "input.path"
    if not os.path.isdir(path):
        return named_files(path, COLUMNS)
    if os.path.isfile(os.path.join(path, SPLITS)):
        splits = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        raise several_splits(path, splits, f"{key}={path}/{example_split(splits)}")
    state = os.path.join(path, STATE)
    if os.path.isfile(state):  # files that it does not list, such as caches, are ignored
        try:
            with open(state, "rb") as file:
                entries = json.loads(file.read(MOST_JSON_BYTES))["_data_files"]
            names = [str(entry["filename"]) for entry in entries]
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(102, state, f"damaged ({words_of(error)})", "save it again") from error
        if not names or any(os.path.basename(name) != name for name in names):
            what = "must list one or more files, all directly in this folder"
            raise DataError(102, state, what, "save it again")
        return [os.path.join(path, name) for name in names]
    files = named_files(path, COLUMNS)
    stems = [os.path.splitext(os.path.relpath(file, path))[0] for file in files]
    splits = {
        NUMBERED.sub("", stem)
        for stem in stems
        if NUMBERED.search(stem) or os.path.basename(stem) in USUAL_SPLITS
    }
    if len(splits) > 1:
        raise several_splits(path, sorted(splits), f"{key}={path}/{example_split(sorted(splits))}*")
    return files
