"""WebDataset shards: .tar files whose members with one name, up to its first dot, are one record.

Members are located once and then read in place. Nothing is ever extracted.
"""

import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from framework.contracts.records import Manifest
from framework.errors import ConfigError, DataError
from framework.input.array_values import value_of
from framework.input.file_items import named_files, read_part
from framework.input.label import (
    check_classes,
    class_in,
    class_pattern,
    label_column,
    number_classes,
)
from framework.input.rows import Row, RowInput, text_by_field
from framework.store.folder_store import SUFFIXES
from framework.store.foreign import number_of

IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)
TEXTS = ("cls", "txt")
# What tarfile raises for damaged files.
PARSING = (tarfile.TarError, ValueError, ArithmeticError, LookupError, RecursionError)
BROKEN = (*PARSING, OSError, EOFError, MemoryError)


class Member(NamedTuple):
    """The place of a member's bytes in its shard."""

    name: str
    start: int
    size: int


class Item(NamedTuple):
    """The members of a record, by suffix."""

    shard: str
    key: str
    members: dict[str, Member]

    def __str__(self) -> str:
        return f"{self.shard}: {next(iter(self.members.values())).name}"


class _Listed(NamedTuple):
    items: list[Item]
    left_out: int  # members that belong to no record


@final
@dataclass(eq=False)
class TarInput(RowInput):
    """Records in the byte order of the shards' names, and in a shard in the order of its members.

    A record's key is its members' common name. Links and devices are left out. A member is an
    image, ``npy`` (an array), ``cls`` or ``txt`` (for ``label`` a class's number or name, else a
    number). Without ``fields``, other members than an image and ``cls`` are an error.
    ``conf/input/tar.yaml`` describes the options.
    """

    path: str
    fields: Mapping[str, str] | None
    classes: Sequence[str] | None
    label_pattern: str | None

    def __post_init__(self) -> None:
        if self.fields is not None:
            self.fields = _checked_fields(self.fields)
        self.pattern = class_pattern(self.label_pattern)
        if self.pattern is not None and "label" in (self.fields or {}):
            what = "input.fields has a label already"
            raise ConfigError(162, "input.label_pattern", what, "give one of the two")

    @cached_property
    def listed(self) -> _Listed:
        """The records of all shards. DataError D101, D110, and those of a bad shard."""
        shards = [_list_shard(shard) for shard in named_files(self.path, (".tar",))]
        items = [item for shard in shards for item in shard.items]
        if not items:
            raise DataError(110, self.path, "no file inside", "give .tar files that hold images")
        return _Listed(items, sum(shard.left_out for shard in shards))

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """The suffixes that the member of each field may have.

        ConfigError C162 if members would be ignored silently.
        """
        if self.fields is not None:
            return {field: (suffix,) for field, suffix in self.fields.items()}
        suffixes = {suffix for item in self.listed.items for suffix in item.members}
        if others := sorted(suffixes - {*IMAGES, "cls"}):
            what = f"there are members .{', .'.join(others[:5])} too"
            fix = "say what is wanted, as in input.fields={image: jpg, label: cls}"
            raise ConfigError(162, "input.fields = null", what, fix)
        sources: dict[str, tuple[str, ...]] = {}
        if suffixes & {*IMAGES}:
            sources["image"] = IMAGES
        if "cls" in suffixes and self.pattern is None:
            sources["label"] = ("cls",)
        return sources

    @cached_property
    def labels(self) -> tuple[np.ndarray, list[str]] | None:
        """The labels (int64) and the classes; None if no member and no pattern gives labels."""
        items = self.listed.items
        if self.pattern is not None:
            names = [class_in(item.key, self.pattern, str(item)) for item in items]
            numbers, classes = number_classes(names, self.classes, self.path)
        elif _is_text(self.sources.get("label", ("",))[0]):
            texts = [self._label_text(item) for item in items]
            numbers, classes = label_column(texts, self.classes, self.path, self.name)
        else:
            return None
        return np.array(numbers, np.int64), classes

    def _label_text(self, item: Item) -> str:
        _, data = self._read(item, "label")
        text = data.decode("utf-8", "surrogateescape").strip()
        if not text:
            raise DataError(162, str(item), "its label is empty", "correct or remove it")
        return text

    def manifest_without_fields(self) -> Manifest:
        items, left_out = self.listed
        note = ""
        if left_out:
            note = f" ({left_out} members left out: links, devices, names without a suffix)"
        classes = check_classes((), self.classes, self.path)
        if self.labels is not None:
            classes = self.labels[1]
        return Manifest(len(items), {}, classes, source=f"tar {self.path}{note}")

    def row(self, index: int) -> Row:
        item = self.listed.items[index]
        row: Row = {}
        for field in self.sources:
            if field != "label" or self.labels is None:
                row[field] = self._value(item, field)
        if self.labels is not None:
            row["label"] = self.labels[0][index : index + 1].reshape(())
        return row

    def _value(self, item: Item, field: str) -> bytes | np.ndarray:
        suffix, data = self._read(item, field)
        if not _is_text(suffix):
            return value_of(data, f".{suffix}", str(item))
        number = number_of(data.decode(errors="replace").strip())
        if number is None:
            what = f"{data[:40]!r} is not a number"
            raise DataError(162, f"{item}: {field}", what, "correct it, or leave the field out")
        return number

    def _read(self, item: Item, field: str) -> tuple[str, bytes]:
        """Return the suffix and the bytes of the only member of an item for a field."""
        wanted = self.sources[field]
        suffixes = [suffix for suffix in wanted if suffix in item.members]
        if len(suffixes) != 1:
            what = f"has {len(suffixes)} members for {field} (.{', .'.join(wanted)})"
            fix = "correct the shard, or input.fields"
            raise DataError(163 if suffixes else 167, str(item), what, fix)
        _, start, size = item.members[suffixes[0]]
        return suffixes[0], read_part(item.shard, start, size, str(item))

    def key(self, index: int) -> str:
        return self.listed.items[index].key

    def name(self, index: int) -> str:
        return str(self.listed.items[index])

    def item_files(self, index: int) -> Sequence[str]:
        return (self.listed.items[index].shard,)


def _is_text(suffix: str) -> bool:
    return suffix.rpartition(".")[2] in TEXTS


def _checked_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the suffix of each field, without a dot, in lower case. ConfigError C162."""
    given = text_by_field("fields", fields, "{image: jpg, label: cls}")
    suffixes = {field: suffix.lower().lstrip(".") for field, suffix in given.items()}
    for field, suffix in suffixes.items():
        if suffix.rpartition(".")[2] not in (*IMAGES, *TEXTS, "npy"):
            where = f"input.fields.{field} = {suffix}"
            fix = (
                f"choose {', '.join(('npy', *TEXTS, *IMAGES))}, "
                "or read it in a function of your own (input=function)"
            )
            raise ConfigError(162, where, "not a member that can be read", fix)
    return suffixes


def _list_shard(shard: str) -> _Listed:
    """Return the records of a shard. DataError D166 for a damaged one, D165, D163."""
    items: dict[str, Item] = {}
    left_out, size, last = 0, os.path.getsize(shard), -1
    try:
        with tarfile.open(shard, "r:") as archive:
            while (entry := archive.next()) is not None:
                goes_back = entry.offset <= last or entry.size < 0
                if goes_back or (entry.isreg() and entry.offset_data + entry.size > size):
                    raise tarfile.ReadError(f"truncated or damaged at {entry.name!r}")
                last = entry.offset
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  # or it would keep millions
                if not entry.isdir():
                    left_out += not _add(items, shard, entry)
            _check_end(archive, shard)
    except BROKEN as error:
        what = f"not a whole, uncompressed .tar file ({error})"
        raise DataError(166, shard, what, "get it again; unpack .tar.gz to .tar") from error
    return _Listed(list(items.values()), left_out)


def _check_end(archive: tarfile.TarFile, shard: str) -> None:
    """Check that only zeros follow: tarfile takes a damaged header in the middle for the end."""
    with open(shard, "rb") as file:
        file.seek(archive.offset)
        block = file.read(tarfile.BLOCKSIZE)
    if block.strip(b"\0") or len(block) not in (0, tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"damaged header at byte {archive.offset}")


def _add(items: dict[str, Item], shard: str, entry: tarfile.TarInfo) -> bool:
    """Add a member to its record. Return False for links, devices, hidden files and no suffix."""
    name = entry.name
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        what = f"member {name!r} leads out of the archive"
        raise DataError(165, shard, what, "do not trust this file")
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.partition(".")
    if not stem or not dot or not entry.isreg() or entry.issparse():
        return False
    key, suffix = f"{folder}{slash}{stem}", suffix.lower()
    item = items.setdefault(key, Item(shard, key, {}))
    if suffix in item.members:
        raise DataError(163, shard, f"has the member {name!r} twice", "keep one of them")
    item.members[suffix] = Member(name, entry.offset_data, entry.size)
    return True
