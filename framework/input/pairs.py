"""Parallel trees of files: ``blurry/a/1.png`` and ``sharp/a/1.png`` are one record."""

import os
import re
from collections.abc import Mapping
from functools import cached_property
from typing import final

from framework.contracts.records import Chunk, Manifest
from framework.errors import ConfigError, DataError
from framework.input.array_values import Row, chunk_of, first_fields, value_of
from framework.input.file_items import found_in, read_file
from framework.store.folder_store import SUFFIXES
from framework.store.walk_tree import Walked, walk

WILD = re.compile(r"\*\*/?|\*|\?")


@final
class PairsInput:
    """One field per tree: image files as they are, .npy files as arrays.

    ``fields``: field -> a folder, whose files are matched by their relative path without suffix; or a pattern with ``*``, ``?`` and
    ``**``, whose files are matched by the parts that these stand for (``**``: any depth). ``unmatched``: ``fail``, or ``skip`` names
    that not every field has. ``follow_links``: as in ``data.tree.walk``. Records are in the byte order of the matched names, which are their keys.
    """

    def __init__(
        self, fields: Mapping[str, str], unmatched: str, follow_links: str | None = None
    ) -> None:
        if not hasattr(fields, "items") or not fields:
            raise ConfigError(
                162,
                f"input.fields = {fields}",
                "names no tree",
                "give input.fields={blurry: DIR, sharp: DIR}",
            )
        if unmatched not in ("fail", "skip"):
            raise ConfigError(
                162, f"input.unmatched = {unmatched}", "not a choice", "choose fail or skip"
            )
        self.fields, self.unmatched = (
            {str(name): str(tree) for name, tree in fields.items()},
            unmatched,
        )
        self.follow_links = follow_links

    @cached_property
    def trees(self) -> dict[str, tuple[dict[str, str], Walked]]:
        return {field: _tree(tree, self.follow_links) for field, tree in self.fields.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        notes = (walked.link_note("input.follow_links") for _, walked in self.trees.values())
        return tuple(note for note in notes if note is not None)

    @cached_property
    def items(self) -> tuple[list[str], list[dict[str, str]], str]:
        """(matched names, a file per field for each, a note on what is left out). DataError D160 lists unmatched names."""
        trees = self.trees
        for files, walked in trees.values():
            if not files and walked.links:
                raise walked.nothing("no file matches", "", "input.follow_links")
        names = set.intersection(*(set(files) for files, _ in trees.values()))
        alone = [
            f"{name} (not in {', '.join(field for field, (files, _) in trees.items() if name not in files)})"
            for name in sorted(
                set().union(*(files for files, _ in trees.values())) - names, key=os.fsencode
            )
        ]
        where = ", ".join(self.fields.values())
        if alone and self.unmatched == "fail":
            listed = "; ".join(alone[:10]) + ("; ..." if len(alone) > 10 else "")
            fix = "complete the trees, or set input.unmatched=skip"
            raise DataError(160, where, f"{len(alone)} unmatched names: {listed}", fix)
        if not names:
            raise DataError(
                110,
                where,
                "no name is in every tree",
                f"files {' '.join(SUFFIXES)} .npy under each",
            )
        ordered = sorted(names, key=os.fsencode)
        note = "".join(found_in(walked).note for _, walked in trees.values()) + (
            f" ({len(alone)} unmatched left out)" if alone else ""
        )
        return (
            ordered,
            [{field: files[name] for field, (files, _) in trees.items()} for name in ordered],
            note,
        )

    @cached_property
    def manifest(self) -> Manifest:
        names, _, note = self.items
        fields = first_fields(len(names), lambda index: [self._row(index)], self.name)
        trees = ", ".join(f"{field} {tree}" for field, tree in self.fields.items())
        return Manifest(len(names), fields, source=f"pairs {trees}{note}")

    def read(self, start: int, stop: int) -> Chunk:
        names, _, _ = self.items
        rows = [self._row(index) for index in range(start, stop)]
        return chunk_of(
            rows, names[start:stop], self.manifest.fields, lambda number: self.name(start + number)
        )

    def _row(self, index: int) -> Row:
        return {
            field: value_of(read_file(path), path, path)
            for field, path in self.items[1][index].items()
        }

    def name(self, index: int) -> str:
        """All files of the pair: any of them may be the bad one."""
        return " + ".join(self.items[1][index].values())


def _tree(tree: str, follow_links: str | None) -> tuple[dict[str, str], Walked]:
    """(matched name -> path, all that was walked) of a folder or a pattern. DataError D163 where two files have one name."""
    root, pattern = _split(tree)
    walked = walk(root, (*SUFFIXES, ".npy"), follow_links)
    files: dict[str, str] = {}
    for name in walked.names:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        path, key = os.path.join(root, name), "/".join(part for part in match.groups() if part)
        if key in files:
            raise DataError(
                163,
                path,
                f"matches the same name {key!r} as {files[key]}",
                "remove one of them, or narrow input.fields",
            )
        files[key] = path
    return files, walked


def _split(tree: str) -> tuple[str, re.Pattern[str]]:
    """(the folder to walk, what a relative path under it must be; the groups are its matched name)."""
    wild = WILD.search(tree)
    if wild is None:
        return tree, re.compile(r"(.+)\.[^./]+", re.DOTALL)
    root = os.path.dirname(tree[: wild.start()])
    rest = tree[len(root) :].lstrip("/")
    parts, end = "", 0
    for wild in WILD.finditer(rest):
        parts += re.escape(rest[end : wild.start()]) + _expression(wild.group())
        end = wild.end()
    return root or ("/" if tree.startswith("/") else "."), re.compile(
        parts + re.escape(rest[end:]), re.DOTALL
    )


def _expression(wild: str) -> str:
    return {"*": "([^/]*)", "?": "([^/])", "**": "(.*)", "**/": "(?:(.*)/)?"}[wild]
