"""A folder of images with a subfolder per class."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from framework.contracts.records import Chunk, Manifest
from framework.input.array_values import Row, chunk_of, first_fields
from framework.input.file_items import found_in, read_file
from framework.input.label import check_classes, class_in, class_pattern, number_classes
from framework.store.folder_store import SUFFIXES, is_class
from framework.store.walk_tree import Walked, walk


class _Labeled(NamedTuple):
    names: list[str]  # relative paths
    labels: np.ndarray  # int64
    classes: list[str]


@final
@dataclass(eq=False)
class FolderInput:
    """Fields ``image`` (a file's bytes) and ``label``, ordered by class and name.

    A file's class is its first subfolder, with images or without, or what ``label_pattern`` finds
    in its relative path. With ``classes`` a validation folder that lacks a class still has the
    training folder's numbers. ``conf/input/folder.yaml`` describes the options.
    """

    path: str
    classes: Sequence[str] | None
    label_pattern: str | None
    follow_links: str | None = None

    def __post_init__(self) -> None:
        self.pattern = class_pattern(self.label_pattern)

    @cached_property
    def walked(self) -> Walked:
        return walk(self.path, SUFFIXES, self.follow_links)

    @property
    def notes(self) -> tuple[str, ...]:
        note = self.walked.link_note("input.follow_links")
        return () if note is None else (note,)

    @cached_property
    def items(self) -> _Labeled:
        """The images with their labels. DataError D110, D191 if there is no image."""
        classes = self.classes
        if self.pattern is None:
            pairs = [(name.split(os.sep)[0], name) for name in self.walked.names if os.sep in name]
            folders = [name for name in self.walked.folders if is_class(name)]
            classes = check_classes(folders, classes, self.path)
            what = "no image in any subfolder"
        else:
            pairs = [
                (class_in(name, self.pattern, os.path.join(self.path, name)), name)
                for name in self.walked.names
            ]
            what = "no image here"
        if not pairs:
            fix = f"one subfolder per class, or input.label_pattern; files {' '.join(SUFFIXES)}"
            raise self.walked.nothing(what, fix, "input.follow_links")
        pairs.sort(key=lambda pair: tuple(map(os.fsencode, pair)))
        numbers, known = number_classes([label for label, _ in pairs], classes, self.path)
        return _Labeled([name for _, name in pairs], np.array(numbers, np.int64), known)

    @cached_property
    def manifest(self) -> Manifest:
        names = self.items.names
        fields = first_fields(len(names), lambda index: [self._row(index)], self.name)
        note = found_in(self.walked).note
        if loose := len(self.walked.names) - len(names):
            note += f" ({loose} images in no subfolder left out)"
        source = f"folder {self.path}{note}"
        return Manifest(len(names), fields, self.items.classes, source=source)

    def read(self, start: int, stop: int) -> Chunk:
        rows = [self._row(index) for index in range(start, stop)]
        keys = self.items.names[start:stop]
        return chunk_of(rows, keys, self.manifest.fields, lambda number: self.name(start + number))

    def _row(self, index: int) -> Row:
        return {"image": read_file(self.name(index)), "label": np.array(self.items.labels[index])}

    def name(self, index: int) -> str:
        return os.path.join(self.path, self.items.names[index])
