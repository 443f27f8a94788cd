"""Parallel trees of files: ``blurry/a/1.png`` and ``sharp/a/1.png`` are one record."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

from framework.contracts.records import Chunk, Manifest
from framework.errors import ConfigError, DataError
from framework.input.array_values import Row, chunk_of, first_fields, text_mapping, value_of
from framework.input.file_items import found_in, read_file
from framework.store.folder_store import SUFFIXES
from framework.store.walk_tree import Walked, walk

WILD = re.compile(r"(\*\*/?|\*|\?)")
EXPRESSIONS = {"*": "([^/]*)", "?": "([^/])", "**": "(.*)", "**/": "(?:(.*)/)?"}


class _Tree(NamedTuple):
    files: dict[str, str]  # matched name -> path
    walked: Walked


class _Pairs(NamedTuple):
    names: list[str]
    files: list[dict[str, str]]  # field -> path, of each name
    note: str


@final
@dataclass(eq=False)
class PairsInput:
    """One field per tree: image files as they are, .npy files as arrays.

    A tree is a folder, whose files are matched by their relative path without suffix; or a pattern
    with ``*``, ``?`` and ``**`` (any depth), whose files are matched by the parts that these stand
    for. Keys are the matched names, in byte order. ``conf/input/pairs.yaml`` describes the options.
    """

    fields: Mapping[str, str]
    unmatched: str
    follow_links: str | None = None

    def __post_init__(self) -> None:
        fields = text_mapping(self.fields)
        if not fields:
            fix = "give input.fields={blurry: DIR, sharp: DIR}"
            raise ConfigError(162, f"input.fields = {self.fields}", "names no tree", fix)
        self.fields = fields
        if self.unmatched not in ("fail", "skip"):
            where = f"input.unmatched = {self.unmatched}"
            raise ConfigError(162, where, "not a choice", "choose fail or skip")

    @cached_property
    def trees(self) -> dict[str, _Tree]:
        return {field: _read_tree(tree, self.follow_links) for field, tree in self.fields.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        notes = (tree.walked.link_note("input.follow_links") for tree in self.trees.values())
        return tuple(note for note in notes if note is not None)

    @cached_property
    def items(self) -> _Pairs:
        """The matched files. DataError D160 lists unmatched names."""
        trees = self.trees
        for tree in trees.values():
            if not tree.files and tree.walked.links:
                raise tree.walked.nothing("no file matches", "", "input.follow_links")
        shared = set.intersection(*(set(tree.files) for tree in trees.values()))
        every = set().union(*(tree.files for tree in trees.values()))
        unmatched = sorted(every - shared, key=os.fsencode)
        where = ", ".join(self.fields.values())
        if unmatched and self.unmatched == "fail":
            lines: list[str] = []
            for name in unmatched[:10]:
                missing = [field for field, tree in trees.items() if name not in tree.files]
                lines.append(f"{name} (not in {', '.join(missing)})")
            more = "; ..." if len(unmatched) > 10 else ""
            what = f"{len(unmatched)} unmatched names: {'; '.join(lines)}{more}"
            fix = "complete the trees, or set input.unmatched=skip"
            raise DataError(160, where, what, fix)
        if not shared:
            fix = f"files {' '.join(SUFFIXES)} .npy under each"
            raise DataError(110, where, "no name is in every tree", fix)
        names = sorted(shared, key=os.fsencode)
        files = [{field: tree.files[name] for field, tree in trees.items()} for name in names]
        note = "".join(found_in(tree.walked).note for tree in trees.values())
        if unmatched:
            note += f" ({len(unmatched)} unmatched left out)"
        return _Pairs(names, files, note)

    @cached_property
    def manifest(self) -> Manifest:
        count = len(self.items.names)
        fields = first_fields(count, lambda index: [self._row(index)], self.name)
        trees = ", ".join(f"{field} {tree}" for field, tree in self.fields.items())
        return Manifest(count, fields, source=f"pairs {trees}{self.items.note}")

    def read(self, start: int, stop: int) -> Chunk:
        rows = [self._row(index) for index in range(start, stop)]
        keys = self.items.names[start:stop]
        return chunk_of(rows, keys, self.manifest.fields, lambda number: self.name(start + number))

    def _row(self, index: int) -> Row:
        files = self.items.files[index]
        return {field: value_of(read_file(path), path, path) for field, path in files.items()}

    def name(self, index: int) -> str:
        """Return all files of the pair, since any of them may be bad."""
        return " + ".join(self.items.files[index].values())


def _read_tree(tree: str, follow_links: str | None) -> _Tree:
    """Return the files of a folder or a pattern. DataError D163 for two files of one name."""
    wild = WILD.search(tree)
    if wild is None:
        root, pattern = tree, re.compile(r"(.+)\.[^./]+", re.DOTALL)
    else:
        root = os.path.dirname(tree[: wild.start()])
        parts = WILD.split(tree[len(root) :].lstrip("/"))  # every second one is wild
        texts = [EXPRESSIONS[p] if n % 2 else re.escape(p) for n, p in enumerate(parts)]
        pattern = re.compile("".join(texts), re.DOTALL)
        root = root or ("/" if tree.startswith("/") else ".")
    walked = walk(root, (*SUFFIXES, ".npy"), follow_links)
    files: dict[str, str] = {}
    for name in walked.names:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        path, key = os.path.join(root, name), "/".join(part for part in match.groups() if part)
        if key in files:
            what = f"matches the same name {key!r} as {files[key]}"
            raise DataError(163, path, what, "remove one of them, or narrow input.fields")
        files[key] = path
    return _Tree(files, walked)
