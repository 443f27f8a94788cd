"""WebDataset shards as a store: records are read at any place, through memory maps.

An image is a view of the map, so it is not copied before it is decoded. A shard that is truncated
while it is read may still kill the process, as with any memory map.
"""

import io
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from mmap import ACCESS_READ, mmap
from typing import Any, final
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import LABEL, Field, Manifest, Records
from framework.errors import DataError
from framework.media.decode import BadImage, shared_channels
from framework.media.header import ImageHeader, read_header
from framework.store.array_values import ArrayHeader, native, read_npy_header
from framework.store.file_format import refuse_other
from framework.store.foreign import NPY
from framework.store.gather import ask_pages, map_of, ragged_of, should_ask
from framework.store.identity import identify, sampled_digest, unreadable
from framework.store.kinds import (
    OF_STRINGS,
    check_label_maps,
    check_present,
    checked_kinds,
    field_of_kind,
)
from framework.store.tar_records import TarRecords, changed
from framework.store.tar_shard import HEADER

MOST_MAPS = 256  # of one process: each holds a file descriptor, and 1,024 is the usual limit


@final
class TarStore:
    """A RecordStore over .tar files, with an index that is written once; see ``TarRecords``.

    The bytes of records have no checksums, so ``damaged`` never lists any. Their headers have one:
    a shard that was replaced is noticed (D117).

    Args:
        path: A shard, a folder of shards, or a pattern.
        fields: The suffix of each field's member; None: ``image``, and ``label`` if there is one.
        classes: All classes in the order of their numbers; None: those of the labels.
        label_pattern: A regular expression whose one group is the class in a record's key.
        labels: The fields that are label maps.
        kinds: What other fields are, as in ``TarRecords``.
        keep: Whether to write an index that does not exist yet.

    Raises:
        ConfigError: C160, C161, C162 or C179 for options that do not fit.
        DataError: D101 if there is no shard; D103 for a file of another format; D163, D165, D166
            for a bad shard; D106, D112, D162, D167 if the first record cannot be read.
    """

    samples_colors = True

    def __init__(
        self,
        path: str,
        fields: Mapping[str, str] | None = None,
        classes: Sequence[str] | None = None,
        label_pattern: str | None = None,
        labels: Sequence[str] | None = None,
        kinds: Mapping[str, str] | None = None,
        keep: bool = True,
    ) -> None:
        refuse_other(path, "tar")
        self.path = path
        options = (fields, classes, label_pattern, "data", keep, checked_kinds(kinds, "data"))
        self.records = TarRecords(path, *options)
        self.label_maps = tuple(labels or ())
        self._views: dict[str, memoryview] = {}  # the newest memory maps, by the shard's path
        self._heads: dict[str, tuple[bytes, ArrayHeader]] = {}  # of the first array of each field

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": {}, "_heads": {}}

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @cached_property
    def _manifest(self) -> Manifest:
        records = self.records
        fields = {name: self._field(name) for name in records.sources}
        if records.labels is not None:
            fields[LABEL] = Field("int64", ())
        if not fields:
            fix = "give 'data.fields={image: jpg, label: cls}', say"
            raise DataError(167, self.path, "no member is an image or a label", fix)
        check_present(records.given_kinds, fields, "data")
        check_label_maps(self.label_maps, fields, "data")
        counts: list[int] = []
        classes = records.class_names
        if records.labels is not None and len(classes) > records.labels[0].max():
            counts = np.bincount(records.labels[0], minlength=len(classes)).tolist()
        digest = sampled_digest(records.listed.shards)
        return Manifest(len(records), fields, classes, counts, source=records.source, digest=digest)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which index cannot be kept, and which field may be a label map."""
        lines: list[str] = []
        if unkept := self.records.listed.unkept:
            what = "cannot be written, neither beside the shard nor in the cache folder"
            lines.append(f"the index of {unkept[0]} {what}; every start reads all headers again")
        images = [name for name, field in self.manifest.fields.items() if field.kind == "image"]
        for name in images if len(images) > 1 else ():
            header = self._first_header(name)
            if header.format == "png" and header.channels == 1:
                lines.append(f"{name}: is it a label map? Then add 'data.labels=[{name}]'")
        return tuple(lines)

    def _first_header(self, name: str) -> ImageHeader:
        try:
            return read_header(self.records.read(name, 0))
        except (BadImage, ValueError) as error:
            what = f"not a readable image ({error})"
            where = f"{self.name(0)}: {name}"
            raise DataError(106, where, what, "correct or remove it") from error

    def _field(self, name: str) -> Field:
        """Return a field as its first record has it."""
        if name == LABEL and self.records.labels is not None:
            return Field("int64", ())
        self.records.check_members(name)
        value = self.records.value(name, 0)
        if name in self.records.kinds:
            return field_of_kind(value, self.records.kinds[name])
        if isinstance(value, np.ndarray):
            return Field(value.dtype.name, value.shape)
        self._first_header(name)
        if name in self.label_maps:
            return Field("uint8", (1, None, None), "image", "labels")
        channels = shared_channels(len(self.records), lambda row: self.records.read(name, row))
        return Field("uint8", (channels, None, None), "image")

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        if should_ask():
            self._ask(indices)
        records: Records = {}
        for name, field in self.manifest.fields.items():
            if name == LABEL and self.records.labels is not None:
                records[name] = torch.from_numpy(self.records.labels[0])[indices]
                continue
            parts = self._parts(name, indices)
            if field.encoding == "image":
                records[name] = parts
            elif field.kind in OF_STRINGS:
                records[name] = ragged_of([np.frombuffer(part, np.uint8) for part in parts], field)
            else:
                arrays = self._arrays(name, field, parts, indices.tolist())
                if name not in views:
                    is_ragged = field.encoding == "ragged"
                    arrays = ragged_of(arrays, field) if is_ragged else _stacked(arrays, field)
                records[name] = arrays
        return records

    def _parts(self, name: str, indices: Tensor) -> list[Any]:
        """Return the bytes of the records' members as views of the maps, without a copy."""
        listed = self.records.listed
        places = indices.numpy()
        members = self.records.members[name][places]
        shards = listed.shard_numbers[places].tolist()
        maps = {number: self._view(number) for number in set(shards)}
        columns = (listed.starts[members], listed.sizes[members], listed.crcs[members])
        parts: list[Any] = []
        for shard, start, size, crc in zip(shards, *(c.tolist() for c in columns), strict=True):
            view = maps[shard]
            if crc32(view[start - HEADER : start]) != crc:
                raise changed(listed.shards[shard])
            parts.append(view[start : start + size])
        return parts

    def _view(self, number: int) -> memoryview:
        """Return the bytes of a shard. DataError D101, or D117 if it is another one by now.

        A map lives until nobody holds a part of it.
        """
        listed = self.records.listed
        shard, identity = listed.shards[number], listed.identities[number]
        identify(shard, identity)
        view = self._views.get(shard)
        if view is not None:
            return view
        try:
            with open(shard, "rb") as file:
                view = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        except (OSError, ValueError) as error:
            raise unreadable(shard, error) from error
        identify(shard, identity)  # it may be replaced meanwhile
        for old in list(self._views)[: 1 - MOST_MAPS]:
            self._views.pop(old, None)
        self._views[shard] = view
        return view

    def _ask(self, indices: Tensor) -> None:
        """Let the disk read the members of the records and their headers at the same time."""
        listed = self.records.listed
        places = indices.numpy()
        shards = listed.shard_numbers[places]
        labels_are_known = self.records.labels is not None
        names = [name for name in self.records.sources if name != LABEL or not labels_are_known]
        for number in np.unique(shards).tolist():
            shard = map_of(np.frombuffer(self._view(number), np.uint8))
            for name in names:
                members = self.records.members[name][places[shards == number]]
                starts = torch.from_numpy(listed.starts[members] - HEADER)
                ask_pages(shard, starts, torch.from_numpy(listed.sizes[members] + HEADER))

    def _arrays(
        self, name: str, field: Field, parts: Sequence[Any], indices: list[int]
    ) -> list[np.ndarray]:
        """Return arrays of the shape and dtype of the field, in the maps' memory if they can be."""
        arrays: list[np.ndarray] = []
        for part, index in zip(parts, indices, strict=True):
            array = self._array(name, part, index)
            first = field.encoding == "ragged"  # whose number of rows may differ
            if (array.dtype.name, array.shape[first:]) != (field.dtype, field.shape[first:]):
                what = f"is {array.dtype} {array.shape}, but the first record has "
                what += f"{field.dtype} {tuple(field.shape)}"
                fix = "give every record the same shape and type"
                if array.shape[1:] == field.shape[1:]:
                    fix = f"if its number of rows may differ, add 'data.kinds={{{name}: ragged}}'"
                raise DataError(167, f"{self.name(index)}: {name}", what, fix)
            arrays.append(array)
        return arrays

    def _array(self, name: str, part: Any, index: int) -> np.ndarray:
        """Return an array or a number. Most arrays of a field have one header, parsed once."""
        if name in self._heads:
            head, header = self._heads[name]
            if part[: len(head)] == head and len(part) == len(head) + header.num_bytes:
                return native(header.view(part))
        data = bytes(part)
        array = self.records.parsed(data, name, index)
        assert isinstance(array, np.ndarray)  # an image file is encoded
        if data.startswith(NPY) and name not in (*self._heads, *self.records.kinds):
            header = read_npy_header(io.BytesIO(data), len(data), self.name(index))
            self._heads[name] = data[: header.start], header
        return array

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return []  # an archive has no checksums of its members' bytes

    def key(self, index: int) -> str:
        return self.records.listed.key(index)

    def name(self, index: int) -> str:
        return self.records.name(index)

    def check(self) -> None:
        listed = self.records.listed
        for shard, identity in zip(listed.shards, listed.identities, strict=True):
            if shard in self._views:
                identify(shard, identity)

    def close(self) -> None:
        self._views = {}


def _stacked(arrays: list[np.ndarray], field: Field) -> Tensor:
    """Return the arrays of records: [B, *shape]."""
    out = np.empty((len(arrays), *(size or 0 for size in field.shape)), field.dtype)
    for place, array in enumerate(arrays):
        out[place] = array
    return torch.from_numpy(out)
