"""The records of WebDataset shards: which members are which field, and their labels.

``input=tar`` packs these records, ``data=tar`` reads them where they lie.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, final
from zlib import crc32

import numpy as np

from framework.contracts.records import LABEL
from framework.errors import ConfigError, DataError, listed
from framework.store.array_values import value_of
from framework.store.folder_store import SUFFIXES
from framework.store.foreign import field_name, number_of
from framework.store.identity import unreadable
from framework.store.kinds import of_kind, text_of
from framework.store.label import (
    check_classes,
    class_in,
    class_pattern,
    label_column,
    number_classes,
)
from framework.store.tar_shard import (
    HEADER,
    INDEX_SUFFIX,
    is_text_suffix,
    named_shards,
    shard_index,
)

IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)
PLAIN_SUFFIX = re.compile(r"[a-z_][\w.]*", re.ASCII)  # needs no quotes on a command line
MOST_FIELDS = 20  # suffixes beyond them, and beyond the records, are parts of keys with dots
NONE, SEVERAL = -1, -2  # instead of a member's number


@final
class TarRecords:
    """Records in the byte order of the shards' names, and in a shard in the order of its members.

    A record's key is its members' common name. Links and devices are left out. By its suffix, a
    member is

    - an image, or ``npy``: an array;
    - ``cls``: a number; ``txt``: a number if the first one is, else a text. For the field ``label``
      both are a class's number or name;
    - ``json``: a text, as it is;
    - anything else: bytes.

    Args:
        path: A shard, a folder of shards, or a pattern.
        fields: The suffix of each field's member, or several: ``jpg;png``. None: ``image`` and
            perhaps ``label``; other members than an image and ``cls`` are then an error.
        classes: All classes in the order of their numbers; None: those of the labels.
        label_pattern: A regular expression whose one group is the class in a record's key.
        group: Where these options stand, for errors: ``input`` or ``data``.
        keep: Whether to write the shards' indexes.
        kinds: What fields are, if their suffixes do not say so: text, bytes, ragged, boxes, points.

    Raises:
        ConfigError: C160 or C162 for options that do not fit.
    """

    def __init__(
        self,
        path: str,
        fields: Mapping[str, str] | None,
        classes: Sequence[str] | None,
        label_pattern: str | None,
        group: str = "input",
        keep: bool = False,
        kinds: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.path, self.classes, self.group, self.keep = path, classes, group, keep
        self.given_kinds = dict(kinds)
        given: Any = fields
        self.fields: dict[str, tuple[str, ...]] | None = None
        if given is not None:
            if not isinstance(given, Mapping) or not given:
                what = "must map at least one field to a name"
                fix = f"give '{group}.fields={{image: jpg, label: cls}}'"
                raise ConfigError(162, f"{group}.fields = {given}", what, fix)
            self.fields = {
                str(field): tuple(
                    part.strip().lstrip(".") for part in str(names).lower().split(";")
                )
                for field, names in given.items()
            }
        self.pattern = class_pattern(label_pattern, group)
        if self.pattern is not None and LABEL in (self.fields or {}):
            what = f"{group}.fields has a label already"
            raise ConfigError(162, f"{group}.label_pattern", what, "give one of the two")

    @cached_property
    def listed(self) -> "Listed":
        """The records of all shards. DataError D101, D110, and those of a bad shard."""
        records = Listed(named_shards(self.path), self.keep)
        if not len(records):
            raise DataError(110, self.path, "no file inside", "give .tar files that hold images")
        return records

    def __len__(self) -> int:
        return len(self.listed)

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """The suffixes that the member of each field may have, in lower case.

        ConfigError C162 if members would be ignored silently.
        """
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
            fields: dict[str, str] = {}
            if images:
                fields["image"] = images[0] if len(images) == 1 else f'"{";".join(images)}"'
            for suffix in filter(PLAIN_SUFFIX.fullmatch, sorted(suffixes - set(images))):
                stem, _, last = suffix.rpartition(".")
                fields[field_name(stem or (LABEL if last == "cls" else last), fields)] = suffix
            chosen = ", ".join(f"{field}: {suffix}" for field, suffix in fields.items())
            what = f"there are members .{', .'.join(others[:5])} too"
            fix = f"say what is wanted, as in '{self.group}.fields={{{chosen}}}'"
            if not fields or len(others) > max(MOST_FIELDS, len(self)):
                what = f"a key ends at a name's first dot, which leaves .{', .'.join(others[:3])}"
                fix = "rename the members without other dots, as in v1_000.png"
            raise ConfigError(162, f"{self.group}.fields = null", what, fix)
        usual = {"image": IMAGES} if images else {}
        if "cls" in suffixes and self.pattern is None:
            usual[LABEL] = ("cls",)
        return usual

    @cached_property
    def members(self) -> dict[str, np.ndarray]:
        """The number of each record's member for each field, int64 [records].

        ``NONE`` stands for no member, ``SEVERAL`` for more than one.
        """
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

    def member(self, field: str, index: int) -> int:
        """Return the number of the member of a record. DataError D163 or D167 if it has not one."""
        number = int(self.members[field][index])
        if number < 0:
            wanted = self.sources[field]
            first, last = self.listed.firsts[index : index + 2]
            kinds = self.listed.kinds[first:last]
            count = sum(self.listed.suffixes[kind].lower() in wanted for kind in kinds)
            what = f"has {count} members for {field} (.{', .'.join(wanted)})"
            fix = f"correct the shard, or {self.group}.fields"
            raise DataError(163 if count else 167, self.name(index), what, fix)
        return number

    def check_members(self, field: str) -> None:
        """Check that each record has one member for a field. DataError D163, D167."""
        for index in np.flatnonzero(self.members[field] < 0)[:1].tolist():
            self.member(field, index)

    @cached_property
    def labels(self) -> tuple[np.ndarray, list[str]] | None:
        """The labels (int64) and the classes; None if no member and no pattern gives labels."""
        if self.pattern is not None:
            pattern = self.pattern
            names = [
                class_in(self.listed.key(index), pattern, self.name(index), self.group)
                for index in range(len(self))
            ]
            numbers, classes = number_classes(names, self.classes, self.path, self.group)
        elif self._has_label_texts:
            self.check_members(LABEL)
            texts: list[str] = []
            for index, kept in enumerate(self.listed.kept_texts(self.members[LABEL])):
                data = self.read(LABEL, index) if kept is None else kept
                texts.append(data.decode("utf-8", "surrogateescape").strip())
                if not texts[-1]:
                    fix = "correct or remove it"
                    raise DataError(162, self.name(index), "its label is empty", fix)
            numbers, classes = label_column(texts, self.classes, self.path, self.name, self.group)
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
            kinds[field] = "text" if suffix in ("txt", "json") else "bytes"
            if suffix == "txt":
                first = np.flatnonzero(self.members[field] >= 0)[:1].tolist()
                if any(_number_in(self.read(field, index)) is not None for index in first):
                    del kinds[field]
        return {**kinds, **self.given_kinds}

    @property
    def class_names(self) -> list[str]:
        """The classes in the order of their numbers. ConfigError C161, DataError D161."""
        if self.labels is not None:
            return self.labels[1]
        return check_classes((), self.classes, self.path, self.group)

    @property
    def source(self) -> str:
        """What a manifest says of the source, with the number of members left out."""
        count = self.listed.left_out
        note = f" ({count} members left out: links, devices, names without a suffix)"
        return f"tar {self.path}{note if count else ''}"

    def value(self, field: str, index: int) -> Any:
        """Return an image file's bytes, an array (of no dimension for a number) or a string.

        Raises:
            DataError: D112 for a damaged array, D162 for a text that is no number or not UTF-8,
                D167 for a value that is not of the field's kind, and those of ``read``.
        """
        return self.parsed(self.read(field, index), field, index)

    def parsed(self, data: bytes, field: str, index: int) -> Any:
        """Return the value in the bytes of a member. DataError D112, D162, D167."""
        kind = self.kinds.get(field, "")
        where = f"{self.name(index)}: {field}"
        if kind == "bytes":
            return data
        if kind == "text":
            return text_of(data, field, where, self.group)
        suffix = self.listed.suffixes[self.listed.kinds[self.member(field, index)]]
        if is_text_suffix(suffix):
            value = _number_in(data)
            if value is None:
                what = f"{data[:40]!r} is not a number that a store can hold"
                fix = f"correct it, or add '{self.group}.kinds={{{field}: text}}'"
                raise DataError(162, where, what, fix)
        else:
            value = value_of(data, f".{suffix}", self.name(index))
        return of_kind(value, kind, where, self.group) if kind else value

    def read(self, field: str, index: int) -> bytes:
        """Return the bytes of a record's member for a field.

        Raises:
            DataError: D101 if the shard cannot be read, D117 if it is another one than the indexed
                one, D163 or D167 if the record has not one such member, D166 for a shorter shard.
        """
        member = self.member(field, index)
        kept = self.listed.kept_texts(np.array([member]))[0]
        if kept is not None:
            return kept
        shard, size = self.listed.shard_of(index), int(self.listed.sizes[member])
        try:
            with open(shard, "rb") as file:
                file.seek(int(self.listed.starts[member]) - HEADER)
                data = file.read(HEADER + size)
        except OSError as error:
            raise unreadable(shard, error) from error
        if len(data) != HEADER + size:
            what = f"truncated: {size} bytes wanted, have {max(0, len(data) - HEADER)}"
            raise DataError(166, self.name(index), what, "get the file again")
        if crc32(data[:HEADER]) != self.listed.crcs[member]:
            raise changed(shard)
        return data[HEADER:]

    def name(self, index: int) -> str:
        """Return the shard and the first member of a record."""
        records = self.listed
        suffix = records.suffixes[records.kinds[records.firsts[index]]]
        return f"{records.shard_of(index)}: {records.key(index)}.{suffix}"


def changed(shard: str) -> DataError:
    """Return the error for a shard whose headers are not those of its index."""
    fix = f"remove {shard}{INDEX_SUFFIX} if it is there, and start again"
    return DataError(117, shard, "was replaced or rewritten since it was indexed", fix)


@final
class Listed:
    """The records of several shards, as arrays.

    Attributes:
        shards: The paths.
        identities: Of the shards when they were indexed.
        unkept: The shards whose index could not be written.
        suffixes: All suffixes.
        firsts: int64 [records + 1]: the number of each record's first member.
        kinds: int64 [members]: the number of the suffix.
        starts, sizes, crcs: Of all members, as in ``ShardIndex``.
        shard_numbers: int64 [records]: the number of the shard.
        left_out: The number of members that belong to no record.
    """

    def __init__(self, shards: Sequence[str], keep: bool) -> None:
        self.shards = list(shards)
        parts = [shard_index(shard, keep) for shard in shards]
        indexes = [part[0] for part in parts]
        self.identities = [part[1] for part in parts]
        self.unkept = [shard for shard, part in zip(shards, parts, strict=True) if not part[2]]
        self.suffixes = list(dict.fromkeys(name for index in indexes for name in index.suffixes))
        numbers = {suffix: number for number, suffix in enumerate(self.suffixes)}
        tables = [np.array([numbers[name] for name in i.suffixes], np.int64) for i in indexes]
        members = np.concatenate([index.members for index in indexes])
        kinds = [table[i.members["suffix"]] for table, i in zip(tables, indexes, strict=True)]
        self.kinds = np.concatenate(kinds)
        self.starts = np.ascontiguousarray(members["start"])
        self.sizes = np.ascontiguousarray(members["size"])
        self.crcs = np.ascontiguousarray(members["crc"])
        self.left_out = sum(index.left_out for index in indexes)
        self._is_kept = np.concatenate([index.is_kept for index in indexes])
        self._texts = b"".join(index.texts for index in indexes)
        self._text_ends = np.cumsum(np.where(self._is_kept, self.sizes, 0))
        self._keys = b"".join(index.keys for index in indexes)
        self._key_ends = _numbered_through(
            [i.ends["key"] for i in indexes], [len(i.keys) for i in indexes]
        )
        self.firsts = _numbered_through(
            [i.ends["member"] for i in indexes], [len(i.members) for i in indexes]
        )
        counts = [len(index.ends) for index in indexes]
        self.shard_numbers = np.repeat(np.arange(len(counts)), counts)

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def shard_of(self, index: int) -> str:
        """Return the path of a record's shard."""
        return self.shards[self.shard_numbers[index]]

    def key(self, index: int) -> str:
        """Return the common name of a record's members."""
        start, end = self._key_ends[index : index + 2]
        return self._keys[start:end].decode("utf-8", "surrogateescape")

    def kept_texts(self, members: np.ndarray) -> list[bytes | None]:
        """Return the bytes of members that the index keeps; None for others."""
        ends = self._text_ends[members]
        columns = (self._is_kept[members], ends - self.sizes[members], ends)
        return [
            self._texts[start:end] if is_kept else None
            for is_kept, start, end in zip(*(c.tolist() for c in columns), strict=True)
        ]


def _numbered_through(ends: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """Return 0 and the ends of all shards' parts, of which each shard has counted its own."""
    starts = np.cumsum([0, *sizes])
    parts = [own + start for own, start in zip(ends, starts, strict=False)]
    return np.concatenate([np.zeros(1, np.int64), *parts])


def _number_in(data: bytes) -> np.ndarray | None:
    return number_of(data.decode(errors="replace").strip())
