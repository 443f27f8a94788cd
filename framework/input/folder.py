"""A folder of images, a subfolder per class."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np

from framework.contracts.records import Chunk, Manifest
from framework.input.array_values import Row, chunk_of, first_fields
from framework.input.file_items import found_in, read_file
from framework.input.label import check_classes, class_in, class_pattern, number_classes
from framework.store.folder_store import SUFFIXES, is_class
from framework.store.walk_tree import Walked, walk


@final
class FolderInput:
    """Fields ``image`` (the file's bytes) and ``label`` from the images under ``path``; classes, then files, in byte order.

    The first subfolder of a file is its class, whether it holds images or not. ``classes``: all classes in the order of their
    numbers, so that a validation folder that lacks one is numbered as the training folder; null: as found. ``label_pattern``: take
    the class from a file's relative path by the one group of a regular expression, wherever the file lies; null: from its subfolder.
    ``follow_links``: as in ``data.tree.walk``.
    """

    def __init__(
        self,
        path: str,
        classes: Sequence[str] | None,
        label_pattern: str | None,
        follow_links: str | None = None,
    ) -> None:
        self.path, self.classes, self.follow_links = path, classes, follow_links
        self.pattern = None if label_pattern is None else class_pattern(label_pattern)

    @cached_property
    def walked(self) -> Walked:
        return walk(self.path, SUFFIXES, self.follow_links)

    @property
    def notes(self) -> tuple[str, ...]:
        note = self.walked.link_note("input.follow_links")
        return () if note is None else (note,)

    @cached_property
    def items(self) -> tuple[list[str], np.ndarray, list[str]]:
        """(relative paths, int64 labels, class names). DataError D110, D191 where there is no image."""
        names, classes = self._by_folder() if self.pattern is None else self._by_pattern()
        if not names:
            what = "no image in any subfolder" if self.pattern is None else "no image here"
            fix = f"one subfolder per class, or input.label_pattern; files {' '.join(SUFFIXES)}"
            raise self.walked.nothing(what, fix, "input.follow_links")
        ordered = sorted(names, key=lambda pair: (os.fsencode(pair[1]), os.fsencode(pair[0])))
        labels, known = number_classes([label for _, label in ordered], classes, self.path)
        return [name for name, _ in ordered], np.array(labels, np.int64), known

    def _by_folder(self) -> tuple[list[tuple[str, str]], list[str]]:
        names = [(name, name.split(os.sep)[0]) for name in self.walked.names if os.sep in name]
        folders = [name for name in self.walked.folders if is_class(name)]
        return names, check_classes(folders, self.classes, self.path)

    def _by_pattern(self) -> tuple[list[tuple[str, str]], Sequence[str] | None]:
        assert self.pattern is not None
        return [
            (name, class_in(name, self.pattern, self._where(name))) for name in self.walked.names
        ], self.classes

    @cached_property
    def manifest(self) -> Manifest:
        names, _, classes = self.items
        fields = first_fields(len(names), lambda index: [self._row(index)], self.name)
        loose = len(self.walked.names) - len(names)
        note = found_in(self.walked).note + (
            f" ({loose} images in no subfolder left out)" if loose else ""
        )
        return Manifest(len(names), fields, classes, source=f"folder {self.path}{note}")

    def read(self, start: int, stop: int) -> Chunk:
        names, _, _ = self.items
        rows = [self._row(index) for index in range(start, stop)]
        return chunk_of(
            rows, names[start:stop], self.manifest.fields, lambda number: self.name(start + number)
        )

    def _row(self, index: int) -> Row:
        return {"image": read_file(self.name(index)), "label": np.array(self.items[1][index])}

    def _where(self, name: str) -> str:
        return os.path.join(self.path, name)

    def name(self, index: int) -> str:
        return self._where(self.items[0][index])
