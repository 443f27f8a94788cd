"""Parallel trees of files: ``blurry/a/1.png`` and ``sharp/a/1.png`` are one record."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

from framework.contracts.records import Manifest
from framework.errors import ConfigError, DataError
from framework.input.rows import Row, RowInput, places_of, read_file, text_by_field
from framework.store.files import SUFFIXES, Walked, walk
from framework.store.foreign import value_of

WILD = re.compile(r"(\*\*/?|\*|\?)")
EXPRESSIONS = {"*": "([^/]*)", "?": "([^/])", "**": "(.*)", "**/": "(?:(.*)/)?"}


class _Tree(NamedTuple):
    files: dict[str, str]  # matched name -> path
    walked: Walked


@final
@dataclass(eq=False)
class PairsInput(RowInput):
    """One field per tree: image files as they are, .npy files as arrays.

    Files of a folder are matched by their relative path without suffix, those of a pattern by the
    parts that ``*``, ``?`` and ``**`` stand for. ``conf/input/pairs.yaml`` describes the options.
    """

    fields: Mapping[str, str]
    unmatched: str
    follow_links: str | None = None

    file_per_record = True

    def __post_init__(self) -> None:
        self.fields = text_by_field("fields", self.fields, "{blurry: DIR, sharp: DIR}")
        if self.unmatched not in ("fail", "skip"):
            where = f"input.unmatched = {self.unmatched}"
            raise ConfigError(162, where, "must be fail or skip", "choose fail or skip")

    @cached_property
    def trees(self) -> dict[str, _Tree]:
        """The files of each folder or pattern. DataError D163 for two files of one name."""
        trees: dict[str, _Tree] = {}
        for field, tree in self.fields.items():
            root, expression = tree, r"(.+)\.[^./]+"
            if wild := WILD.search(tree):
                root = os.path.dirname(tree[: wild.start()])
                parts = WILD.split(tree[len(root) :].lstrip("/"))  # every second one is wild
                parts[::2] = map(re.escape, parts[::2])
                parts[1::2] = map(EXPRESSIONS.__getitem__, parts[1::2])
                root = root or ("/" if tree.startswith("/") else ".")
                expression = "".join(parts)
            walked = walk(root, (*SUFFIXES, ".npy"), self.follow_links)
            pattern = re.compile(expression, re.DOTALL)
            paths = [os.path.join(root, name) for name in walked.names]
            places = places_of(root, walked.names, pattern, lambda *p: "/".join(filter(None, p)))
            files = {key: paths[place] for key, place in places.items()}
            trees[field] = _Tree(files, walked)
        return trees

    @property
    def notes(self) -> tuple[str, ...]:
        notes = (tree.walked.link_notes("input.follow_links") for tree in self.trees.values())
        return tuple(note for lines in notes for note in lines)

    @cached_property
    def items(self) -> tuple[list[str], int]:
        """The matched names, and how many are unmatched. DataError D160 lists unmatched ones."""
        trees = self.trees
        for tree in trees.values():
            if not tree.files and tree.walked.links:
                raise tree.walked.nothing("no file matches", "", "input.follow_links")
        counts = Counter(name for tree in trees.values() for name in tree.files)
        names = sorted(counts, key=os.fsencode)
        shared = [name for name in names if counts[name] == len(trees)]
        unmatched = [name for name in names if counts[name] < len(trees)]
        where = ", ".join(self.fields.values())
        if unmatched and self.unmatched == "fail":
            lines: list[str] = []
            for name in unmatched[:10]:
                missing = [field for field, tree in trees.items() if name not in tree.files]
                lines.append(f"{name} (not in {', '.join(missing)})")
            more = "; ..." if len(unmatched) > 10 else ""
            what = f"{len(unmatched)} unmatched names: {'; '.join(lines)}{more}"
            raise DataError(160, where, what, "complete the trees, or set input.unmatched=skip")
        if not shared:
            fix = f"files {' '.join(SUFFIXES)} .npy under each"
            raise DataError(110, where, "no name is in every tree", fix)
        return shared, len(unmatched)

    def described(self) -> Manifest:
        names, num_unmatched = self.items
        note = "".join(tree.walked.left_out for tree in self.trees.values())
        if num_unmatched:
            note += f" ({num_unmatched} unmatched left out)"
        trees = ", ".join(f"{field} {tree}" for field, tree in self.fields.items())
        return Manifest(len(names), {}, source=f"pairs {trees}{note}")

    def row(self, index: int) -> Row:
        paths = self._paths(index)
        return {field: value_of(read_file(path), path, path) for field, path in paths.items()}

    def key(self, index: int) -> str:
        return self.items[0][index]

    def name(self, index: int) -> str:
        """Return all files of the pair, since any of them may be bad."""
        return " + ".join(self._paths(index).values())

    def item_files(self, index: int) -> Sequence[str]:
        return tuple(self._paths(index).values())

    def _paths(self, index: int) -> dict[str, str]:
        return {field: tree.files[self.key(index)] for field, tree in self.trees.items()}
