"""WebDataset shards as a store: records are read at any place, through memory maps.

A shard that is truncated while it is read may kill the process, as with any memory map.
"""

import io
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from mmap import ACCESS_READ, mmap
from typing import Any, final
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import LABEL, Field, Manifest, Records, RecordStore
from framework.errors import ConfigError, DataError, listed
from framework.store import files, foreign, gather
from framework.store.folder_store import image_field
from framework.store.tar_index import HEADER, INDEX_SUFFIX, Listed, is_text_suffix

MOST_MAPS = 256  # of one process: each holds a file descriptor, and 1,024 is the usual limit
IMAGES = tuple(suffix[1:] for suffix in files.SUFFIXES)
NONE, SEVERAL = -1, -2  # in place of a member's number


@final
class TarStore(RecordStore):
    """A RecordStore over .tar files, with an index that is written once.

    Records come in the byte order of the shards' names, and in a shard in the order of its
    members. A record's key is its members' common name. Links and devices are left out. By its
    suffix, a member is an image, an array (``npy``), a number (``cls``), a number or else a text
    (``txt``), a text (``json``), or bytes. For ``label``, ``cls`` and ``txt`` are a class's number
    or name. ``conf/data/tar.yaml`` describes the options, whose names begin with ``group`` in
    errors. ``keep`` says whether to write an index that does not exist yet.

    ConfigError C160, C161, C162 or C179 for options that do not fit; DataError D101, D103, D163,
    D165 or D166 for a missing or bad shard, D106, D112, D162 or D167 for the first record.
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
        group: str = "data",
    ) -> None:
        if group == "data":
            foreign.refuse_other(path, "tar")
        self.path, self.classes, self.keep, self.group = path, classes, keep, group
        self.given_kinds = foreign.checked_kinds(kinds, group)
        self.label_maps = tuple(labels or ())
        self.fields: dict[str, tuple[str, ...]] | None = None
        if fields is not None:
            foreign.check_fields(fields, "{image: jpg, label: cls}", group)
            self.fields = {}
            for field, names in fields.items():
                suffixes = str(names).lower().split(";")
                self.fields[str(field)] = tuple(part.strip().lstrip(".") for part in suffixes)
        self.pattern = foreign.class_pattern(label_pattern, group)
        if self.pattern is not None and LABEL in (self.fields or {}):
            what = f"{group}.fields has a label already"
            raise ConfigError(162, f"{group}.label_pattern", what, "give one of the two")
        self._views: dict[str, memoryview] = {}  # the newest memory maps, by the shard's path
        # The bytes and the meaning of the header of the first array of each field.
        self._heads: dict[str, tuple[bytes, foreign.ArrayHeader]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": {}, "_heads": {}}

    def described(self) -> Manifest:
        fields: dict[str, Field] = {}
        for name in self.sources:
            if name == LABEL and self.labels is not None:
                fields[name] = Field("int64", ())
                continue
            self.check_members(name)
            value = self.value(name, 0)  # the first record decides
            if name in self.kinds:
                fields[name] = foreign.field_of_kind(value, self.kinds[name])
            elif isinstance(value, np.ndarray):
                fields[name] = Field(value.dtype.name, value.shape)
            else:
                where, is_map = f"{self.name(0)}: {name}", name in self.label_maps
                read = partial(self.member_bytes, name)
                fields[name] = image_field(where, len(self), read, is_map)
        classes, counts = self.class_names, list[int]()
        if self.labels is not None:
            fields[LABEL] = Field("int64", ())
            if len(classes) > self.labels[0].max():
                counts = np.bincount(self.labels[0], minlength=len(classes)).tolist()
        if not fields:
            fix = "give 'data.fields={image: jpg, label: cls}', say"
            raise DataError(167, self.path, "no member is an image or a label", fix)
        foreign.check_present(self.given_kinds, fields, self.group)
        foreign.check_label_maps(self.label_maps, fields, self.group)
        digest = files.sampled_digest(self.listed.shards)
        return Manifest(len(self), fields, classes, counts, source=self.source, digest=digest)

    @property
    def notes(self) -> tuple[str, ...]:
        why = "cannot be written, neither beside the shard nor in the cache folder; every start"
        why += " reads all headers again"
        return tuple(f"the index of {shard} {why}" for shard in self.listed.unkept[:1])

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        if gather.should_ask():
            # Let the disk read all members and their headers at the same time.
            listed = self.listed
            places = indices.numpy()
            shards = listed.shard_numbers[places]
            for number in np.unique(shards).tolist():
                shard = gather.map_of(np.frombuffer(self._view(number), np.uint8))
                for name in self.sources:
                    if name == LABEL and self.labels is not None:
                        continue
                    members = self.members[name][places[shards == number]]
                    starts = torch.from_numpy(listed.starts[members] - HEADER)
                    sizes = torch.from_numpy(listed.sizes[members] + HEADER)
                    gather.ask_pages(shard, starts, sizes)
        records: Records = {}
        for name, field in self.manifest.fields.items():
            if name == LABEL and self.labels is not None:
                records[name] = torch.from_numpy(self.labels[0])[indices]
                continue
            parts = self._parts(name, indices)
            if field.encoding == "image":
                records[name] = parts
                continue
            if field.kind in foreign.OF_STRINGS:
                arrays = [np.frombuffer(part, np.uint8) for part in parts]
            else:
                arrays = self._arrays(name, field, parts, indices.tolist())
            if field.encoding == "ragged":
                records[name] = gather.ragged_of(arrays, field)
            elif name in views:
                records[name] = arrays
            else:
                out = np.empty((len(arrays), *(size or 0 for size in field.shape)), field.dtype)
                for place, array in enumerate(arrays):
                    out[place] = array
                records[name] = torch.from_numpy(out)
        return records

    def _parts(self, name: str, indices: Tensor) -> list[Any]:
        """Return the bytes of the records' members as views of the maps, without a copy."""
        listed = self.listed
        places = indices.numpy()
        members = self.members[name][places]
        shards = listed.shard_numbers[places].tolist()
        maps = {number: self._view(number) for number in set(shards)}
        columns = (listed.starts[members], listed.sizes[members], listed.crcs[members])
        parts: list[Any] = []
        for shard, start, size, crc in zip(shards, *(c.tolist() for c in columns), strict=True):
            if crc32(maps[shard][start - HEADER : start]) != crc:
                path = listed.shards[shard]
                fix = f"remove {path}{INDEX_SUFFIX} if it is there, and start again"
                raise DataError(117, path, "was replaced or rewritten since it was indexed", fix)
            parts.append(maps[shard][start : start + size])
        return parts

    def _view(self, number: int) -> memoryview:
        """Return the memory map of a shard. DataError D101, D117 if the shard was replaced."""
        shard, identity = self.listed.shards[number], self.listed.identities[number]
        files.identify(shard, identity)
        if shard in self._views:
            return self._views[shard]
        try:
            with open(shard, "rb") as file:
                view = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        except (OSError, ValueError) as error:
            raise files.unreadable(shard, error) from error
        files.identify(shard, identity)  # it may be replaced meanwhile
        for old in list(self._views)[: 1 - MOST_MAPS]:  # freed once no part of it is in use
            self._views.pop(old, None)
        self._views[shard] = view
        return view

    def _arrays(
        self, name: str, field: Field, parts: Sequence[Any], indices: list[int]
    ) -> list[np.ndarray]:
        """Return arrays of the field's shape and dtype, in the maps' memory if they can be."""
        arrays: list[np.ndarray] = []
        is_ragged = field.encoding == "ragged"  # the number of rows may differ
        for part, index in zip(parts, indices, strict=True):
            head, header = self._heads.get(name, (b"", None))
            is_alike = part[: len(head)] == head
            if header and is_alike and len(part) == len(head) + header.num_bytes:
                array = foreign.native(header.view(part))
            else:
                data = bytes(part)
                array = self.parsed(data, name, index)
                if data.startswith(foreign.NPY) and header is None and name not in self.kinds:
                    header = foreign.read_npy_header(io.BytesIO(data), len(data), self.name(index))
                    self._heads[name] = data[: header.start], header
            has_shape = array.shape[is_ragged:] == field.shape[is_ragged:]
            if not has_shape or array.dtype.name != field.dtype:
                what = f"is {array.dtype} {array.shape}, but the first record has "
                what += f"{field.dtype} {tuple(field.shape)}"
                fix = "give every record the same shape and type"
                if array.shape[1:] == field.shape[1:]:
                    fix = f"if its number of rows may differ, add 'data.kinds={{{name}: ragged}}'"
                raise DataError(167, f"{self.name(index)}: {name}", what, fix)
            arrays.append(array)
        return arrays

    @cached_property
    def listed(self) -> Listed:
        records = Listed(files.named_files(self.path, (".tar",)), self.keep)
        if not len(records):
            raise DataError(110, self.path, "no file inside", "give .tar files that hold images")
        return records

    def __len__(self) -> int:
        return len(self.listed)

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """The suffixes of each field's member, in lower case. ConfigError C162 for others."""
        suffixes = {suffix.lower() for suffix in self.listed.suffixes}
        images = sorted(suffixes & {*IMAGES})
        if self.fields is not None:
            for field, wanted in self.fields.items():
                if not suffixes & set(wanted):
                    where = f"{self.group}.fields.{field} = {';'.join(wanted)}"
                    fix = f"choose from {listed(sorted(suffixes))}"
                    raise ConfigError(162, where, "no member has this suffix", fix)
            return self.fields
        if others := sorted(suffixes - {*IMAGES, "cls"}):
            fields = {"image": f'"{";".join(images)}"'} if images else {}
            for suffix in sorted(suffixes - set(images)):
                stem, _, last = suffix.rpartition(".")
                name = stem or {"cls": LABEL}.get(last, last)
                fields[foreign.field_name(name, fields)] = suffix
            chosen = [f"{field}: {suffix}" for field, suffix in fields.items()]
            what = f"there are members .{', .'.join(others[:5])} too (a key ends at the first dot)"
            fix = f"say what is wanted, as in '{self.group}.fields={{{listed(chosen)}}}'"
            raise ConfigError(162, f"{self.group}.fields = null", what, fix)
        usual = {"image": IMAGES} if images else {}
        if "cls" in suffixes and self.pattern is None:
            usual[LABEL] = ("cls",)
        return usual

    @cached_property
    def members(self) -> dict[str, np.ndarray]:
        """By field, each record's member, ``NONE`` or ``SEVERAL``: int64 [records]."""
        records = self.listed
        members: dict[str, np.ndarray] = {}
        for field, wanted in self.sources.items():
            fits = np.array([suffix.lower() in wanted for suffix in records.suffixes], bool)
            hits = np.flatnonzero(fits[records.kinds])
            owners = np.searchsorted(records.firsts, hits, side="right") - 1
            members[field] = np.full(len(records), NONE, np.int64)
            members[field][owners] = hits
            members[field][np.bincount(owners, minlength=len(records)) > 1] = SEVERAL
        return members

    def check_members(self, field: str) -> None:
        """Check that each record has one member for a field. DataError as in ``member``."""
        for index in np.flatnonzero(self.members[field] < 0)[:1].tolist():
            self.member(field, index)

    def member(self, field: str, index: int) -> int:
        """Return the number of the member of a record. DataError D163 or D167 if it has not one."""
        number = int(self.members[field][index])
        if number < 0:
            count = "0" if number == NONE else "several"
            what = f"has {count} members for {field} (.{', .'.join(self.sources[field])})"
            fix = f"correct the shard, or {self.group}.fields"
            raise DataError(163 if number == SEVERAL else 167, self.name(index), what, fix)
        return number

    @cached_property
    def labels(self) -> tuple[np.ndarray, list[str]] | None:
        """The labels (int64) and the classes; None if no member and no pattern gives labels."""
        classes, path, group = self.classes, self.path, self.group
        if self.pattern is not None:
            names = [
                foreign.class_in(self.key(index), self.pattern, self.name(index), group)
                for index in range(len(self))
            ]
            numbers, classes = foreign.number_classes(names, classes, path, group)
        elif self._has_label_texts:
            self.check_members(LABEL)
            texts: list[str] = []
            for index, kept in enumerate(self.listed.kept_texts(self.members[LABEL])):
                data = self.member_bytes(LABEL, index) if kept is None else kept
                texts.append(data.decode("utf-8", "surrogateescape").strip())
                if not texts[-1]:
                    where, what = self.name(index), "its label is empty"
                    raise DataError(162, where, what, "correct or remove it")
            numbers, classes = foreign.label_column(texts, classes, path, self.name, group)
        else:
            return None
        return np.array(numbers, np.int64), classes

    @property
    def _has_label_texts(self) -> bool:
        suffix = self.sources.get(LABEL, ("",))[0]
        return is_text_suffix(suffix) and LABEL not in self.given_kinds

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The kinds of fields that are not images, arrays or numbers."""
        kinds: dict[str, str] = {}
        for field, suffixes in self.sources.items():
            suffix = suffixes[0].rpartition(".")[2]
            if suffix in (*IMAGES, "npy", "cls") or (field == LABEL and self._has_label_texts):
                continue
            if suffix == "txt":
                first = np.flatnonzero(self.members[field] >= 0)[:1].tolist()
                text = b"".join(self.member_bytes(field, index) for index in first)
                if foreign.number_of(text.decode(errors="replace")) is not None:
                    continue
            kinds[field] = "text" if suffix in ("txt", "json") else "bytes"
        return {**kinds, **self.given_kinds}

    @property
    def class_names(self) -> list[str]:
        if self.labels is not None:
            return self.labels[1]
        return foreign.check_classes((), self.classes, self.path, self.group)

    @property
    def source(self) -> str:
        note = ""
        if count := self.listed.left_out:
            note = f" ({count} members left out: links, devices, names without a suffix)"
        return f"tar {self.path}{note}"

    def value(self, field: str, index: int) -> Any:
        """Return an image file's bytes, an array (of no dimension for a number) or a string."""
        return self.parsed(self.member_bytes(field, index), field, index)

    def parsed(self, data: bytes, field: str, index: int) -> Any:
        """Return the value in the bytes of a member. DataError D112, D162, D167."""
        kind = self.kinds.get(field, "")
        where = f"{self.name(index)}: {field}"
        if kind == "bytes":
            return data
        if kind == "text":
            return foreign.text_of(data, field, where, self.group)
        suffix = self.listed.suffixes[self.listed.kinds[self.member(field, index)]]
        value = foreign.value_of(data, f".{suffix}", self.name(index))
        if is_text_suffix(suffix):
            value = foreign.number_of(data.decode(errors="replace"))
            if value is None:
                what = f"{data[:40]!r} is not a number that a store can hold"
                fix = f"correct it, or add '{self.group}.kinds={{{field}: text}}'"
                raise DataError(162, where, what, fix)
        return foreign.of_kind(value, kind, where, self.group) if kind else value

    def member_bytes(self, field: str, index: int) -> bytes:
        """Return a record's member for a field. DataError D101, D117, D163, D167."""
        kept = self.listed.kept_texts(np.array([self.member(field, index)]))[0]
        return bytes(self._parts(field, torch.tensor([index]))[0]) if kept is None else kept

    def key(self, index: int) -> str:
        return self.listed.key(index)

    def name(self, index: int) -> str:
        """Return the shard and the first member of a record."""
        shards = self.listed
        suffix = shards.suffixes[shards.kinds[shards.firsts[index]]]
        shard = shards.shards[shards.shard_numbers[index]]
        return f"{shard}: {shards.key(index)}.{suffix}"

    def check(self) -> None:
        for shard, identity in zip(self.listed.shards, self.listed.identities, strict=True):
            if shard in self._views:
                files.identify(shard, identity)

    def close(self) -> None:
        self._views = {}
