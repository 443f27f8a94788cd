"""WebDataset shards: .tar files in which the members of one name, up to its first dot, are one record.

Members are found once and then read where they lie; nothing is ever extracted.
"""

import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from framework.contracts.records import Chunk, Manifest
from framework.errors import ConfigError, DataError
from framework.input.array_values import Row, chunk_of, first_fields, value_of
from framework.input.file_items import named_files
from framework.input.label import (
    check_classes,
    class_in,
    class_pattern,
    number_classes,
    numbered_classes,
)
from framework.store.folder_store import SUFFIXES

IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)
TEXTS = ("cls", "txt")
BROKEN = (
    tarfile.TarError,
    ValueError,
    ArithmeticError,
    LookupError,
    OSError,
    EOFError,
    MemoryError,
    RecursionError,
)


class Member(NamedTuple):
    """Where a member's bytes lie in its shard."""

    name: str
    suffix: str
    start: int
    size: int


class Item(NamedTuple):
    """One record's members, by suffix."""

    shard: str
    key: str
    members: dict[str, Member]

    def __str__(self) -> str:
        return f"{self.shard}: {next(iter(self.members.values())).name}"


@final
class TarInput:
    """Records in the byte order of the shards' names, inside one as they lie; a record's key is its members' common name.

    ``path``: a .tar file, a folder of them or a pattern. ``fields``: field -> suffix of a member: an image's, ``npy`` (an array),
    ``cls`` or ``txt`` (for ``label`` a class's number or name, else a number); null: ``image`` from whichever image there is and
    ``label`` from ``cls``, and any other member is an error. ``classes``: names in the order of their numbers. ``label_pattern``:
    the label is what the one group of a regular expression finds in the key. Links and devices are left out.
    """

    def __init__(
        self,
        path: str,
        fields: Mapping[str, str] | None,
        classes: Sequence[str] | None,
        label_pattern: str | None,
    ) -> None:
        self.path, self.classes = path, classes
        self.fields = None if fields is None else _checked(fields)
        self.pattern = None if label_pattern is None else class_pattern(label_pattern)
        if self.pattern is not None and "label" in (self.fields or {}):
            raise ConfigError(
                162,
                "input.label_pattern",
                "input.fields has a label already",
                "give one of the two",
            )

    @cached_property
    def found(self) -> tuple[list[Item], int]:
        """(records, how many members are part of none)."""
        items: list[Item] = []
        left_out = 0
        for shard in named_files(self.path, (".tar",)):
            inside, others = _index(shard)
            items += inside
            left_out += others
        if not items:
            raise DataError(110, self.path, "no file inside", "give .tar files that hold images")
        return items, left_out

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """Field -> suffixes its member may have. ConfigError C162 where members would be ignored without a word."""
        if self.fields is not None:
            return {field: (suffix,) for field, suffix in self.fields.items()}
        suffixes = {suffix for item in self.found[0] for suffix in item.members}
        if others := sorted(suffixes - {*IMAGES, "cls"}):
            what = f"there are members .{', .'.join(others[:5])} too"
            raise ConfigError(
                162,
                "input.fields = null",
                what,
                "say what is wanted, as in input.fields={image: jpg, label: cls}",
            )
        found = {"image": IMAGES} if suffixes & {*IMAGES} else {}
        return {**found, "label": ("cls",)} if "cls" in suffixes and self.pattern is None else found

    @cached_property
    def labels(self) -> tuple[np.ndarray, list[str]] | None:
        """(int64 numbers, class names), or None where nothing tells labels."""
        items = self.found[0]
        if self.pattern is not None:
            names = [class_in(item.key, self.pattern, str(item)) for item in items]
        elif _is_text(self.sources.get("label", ("",))[0]):
            names = [self._text(item) for item in items]
        else:
            return None
        if self.pattern is None and all(re.fullmatch(r"\d{1,9}", name) for name in names):
            numbers = [int(name) for name in names]
            return np.array(numbers, np.int64), numbered_classes(
                max(numbers), self.classes, self.path
            )
        numbers, classes = number_classes(names, self.classes, self.path)
        return np.array(numbers, np.int64), classes

    def _text(self, item: Item) -> str:
        text = (
            _read(item.shard, self._member(item, "label"), str(item))
            .decode("utf-8", "surrogateescape")
            .strip()
        )
        if not text:
            raise DataError(162, str(item), "its label is empty", "mend or remove it")
        return text

    @cached_property
    def manifest(self) -> Manifest:
        items, left_out = self.found
        fields = first_fields(len(items), lambda index: [self._row(index)], self.name)
        note = (
            f" ({left_out} members left out: links, devices, names without a suffix)"
            if left_out
            else ""
        )
        classes = (
            check_classes((), self.classes, self.path)
            if self.labels is None and self.classes
            else []
        )
        return Manifest(
            len(items),
            fields,
            self.labels[1] if self.labels else classes,
            source=f"tar {self.path}{note}",
        )

    def read(self, start: int, stop: int) -> Chunk:
        rows = [self._row(index) for index in range(start, stop)]
        keys = [item.key for item in self.found[0][start:stop]]
        return chunk_of(rows, keys, self.manifest.fields, lambda number: self.name(start + number))

    def _row(self, index: int) -> Row:
        item = self.found[0][index]
        row: Row = {
            field: self._value(item, field)
            for field in self.sources
            if field != "label" or self.labels is None
        }
        return (
            row
            if self.labels is None
            else {**row, "label": self.labels[0][index : index + 1].reshape(())}
        )

    def _value(self, item: Item, field: str) -> bytes | np.ndarray:
        member = self._member(item, field)
        data = _read(item.shard, member, str(item))
        return (
            _number(data, f"{item}: {field}")
            if _is_text(member.suffix)
            else value_of(data, f".{member.suffix}", str(item))
        )

    def _member(self, item: Item, field: str) -> Member:
        suffixes = self.sources[field]
        found = [item.members[suffix] for suffix in suffixes if suffix in item.members]
        if len(found) != 1:
            what = f"has {len(found)} members for {field} (.{', .'.join(suffixes)})"
            raise DataError(
                163 if found else 167, str(item), what, "mend the shard, or correct input.fields"
            )
        return found[0]

    def name(self, index: int) -> str:
        return str(self.found[0][index])


def _is_text(suffix: str) -> bool:
    return suffix.rpartition(".")[2] in TEXTS


def _checked(fields: Mapping[str, str]) -> dict[str, str]:
    """Field -> suffix, without a dot, in lower case. ConfigError C162."""
    if not hasattr(fields, "items") or not fields:
        raise ConfigError(
            162,
            f"input.fields = {fields}",
            "not field: suffix",
            "give input.fields={image: jpg, label: cls}",
        )
    found = {str(field): str(suffix).lower().lstrip(".") for field, suffix in fields.items()}
    for field, suffix in found.items():
        if suffix.rpartition(".")[2] not in (*IMAGES, *TEXTS, "npy"):
            fix = f"choose {', '.join(('npy', *TEXTS, *IMAGES))}, or read it in a function of your own (input=function)"
            raise ConfigError(
                162, f"input.fields.{field} = {suffix}", "not a member that can be read", fix
            )
    return found


def _index(shard: str) -> tuple[list[Item], int]:
    """The records of a shard, and how many members are part of none. DataError D166 for a damaged one, D165, D163."""
    items: dict[str, Item] = {}
    left_out, size, last = 0, os.path.getsize(shard), -1
    try:
        with tarfile.open(shard, "r:") as archive:
            while (entry := archive.next()) is not None:
                if (
                    entry.offset <= last
                    or entry.size < 0
                    or (entry.isreg() and entry.offset_data + entry.size > size)
                ):
                    raise tarfile.ReadError(f"truncated or damaged at {entry.name!r}")
                last = entry.offset
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  # or it would keep millions
                if not entry.isdir():
                    left_out += not _add(items, shard, entry)
            _check_end(archive, shard)
    except BROKEN as error:
        what, fix = (
            f"not a whole, uncompressed .tar file ({error})",
            "get it again; unpack .tar.gz to .tar",
        )
        raise DataError(166, shard, what, fix) from error
    return list(items.values()), left_out


def _check_end(archive: tarfile.TarFile, shard: str) -> None:
    """After the last member there are zeros, or nothing; tarfile takes a damaged header in the middle for the end."""
    with open(shard, "rb") as file:
        file.seek(archive.offset)
        block = file.read(tarfile.BLOCKSIZE)
    if block.strip(b"\0") or len(block) not in (0, tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"damaged header at byte {archive.offset}")


def _add(items: dict[str, Item], shard: str, entry: tarfile.TarInfo) -> bool:
    """Give a member to its record. False for a link, a device, a hidden file or one without a suffix, which are part of none."""
    name = entry.name
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise DataError(
            165, shard, f"member {name!r} leads out of the archive", "do not trust this file"
        )
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.partition(".")
    if not stem or not dot or not entry.isreg() or entry.issparse():
        return False
    key, suffix = f"{folder}{slash}{stem}", suffix.lower()
    item = items.setdefault(key, Item(shard, key, {}))
    if suffix in item.members:
        raise DataError(163, shard, f"has the member {name!r} twice", "keep one of them")
    item.members[suffix] = Member(name, suffix, entry.offset_data, entry.size)
    return True


def _read(shard: str, member: Member, where: str) -> bytes:
    try:
        with open(shard, "rb") as file:
            file.seek(member.start)
            data = file.read(member.size)
    except OSError as error:
        raise DataError(
            101, shard, f"cannot be read ({error.strerror})", "mend it, or give read permission"
        ) from error
    if len(data) != member.size:
        raise DataError(
            166,
            where,
            f"truncated: {member.size} bytes wanted, have {len(data)}",
            "get the shard again",
        )
    return data


def _number(data: bytes, where: str) -> np.ndarray:
    """A whole number as int64, any other as float32."""
    try:
        text = data.decode().strip()
        return (
            np.array(int(text), np.int64)
            if re.fullmatch(r"[+-]?\d{1,18}", text)
            else np.array(float(text), np.float32)
        )
    except ValueError as error:
        raise DataError(
            162, where, f"{data[:40]!r} is not a number", "mend it, or leave the field out"
        ) from error
