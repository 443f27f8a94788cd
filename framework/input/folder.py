"""A folder of images or sounds with a subfolder per class."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from framework.contracts.records import Manifest
from framework.input.rows import Row, RowInput, read_file
from framework.media.sound_video import SOUNDS
from framework.store.files import SUFFIXES, Walked, images_of, is_class, loose_notes, walk
from framework.store.foreign import check_classes, class_in, class_pattern, number_classes


@dataclass(eq=False)
class FolderInput(RowInput):
    """Fields ``image`` or ``audio`` (a file's bytes, as the first one is) and ``label``.

    They are ordered by class and name. With ``classes`` a validation folder that lacks a class
    still has the training folder's numbers. ``conf/input/folder.yaml`` describes the options.
    """

    path: str
    classes: Sequence[str] | None
    label_pattern: str | None
    follow_links: str | None = None
    labeled: bool | None = None

    # Without annotations, so that they are no options.
    file_per_record = True
    suffixes = (*SUFFIXES, *SOUNDS)
    noun = "image"  # what a file is: the name of the field, for messages too

    def __post_init__(self) -> None:
        self.pattern = class_pattern(self.label_pattern)
        self._root = os.path.join(self.path, "")

    @cached_property
    def walked(self) -> Walked:
        return walk(self.path, self.suffixes, self.follow_links, hidden=False)

    @property
    def notes(self) -> tuple[str, ...]:
        loose = loose_notes(self.walked, len(self.items[0]), self.noun)
        return (*self.walked.notes("input.follow_links"), *loose)

    @cached_property
    def items(self) -> tuple[list[str], np.ndarray, list[str]]:
        """Relative paths, labels (none if not ``labeled``) and classes. DataError D110, D191."""
        classes, walked = self.classes, self.walked
        what, fix = f"no {self.noun} here", "give a folder of"
        pairs = [("", name) for name in walked.names]
        if self.labeled is not False:
            fix = "one subfolder per class, or input.label_pattern;"
            if self.pattern is None:
                what = f"no {self.noun} in any subfolder"
                pairs = images_of(walked)
                classes = check_classes(list(filter(is_class, walked.folders)), classes, self.path)
            else:
                pairs = [(class_in(n, self.pattern, self._root + n), n) for n in walked.names]
                pairs.sort(key=lambda pair: tuple(map(os.fsencode, pair)))
        if not pairs:
            fix = f"{fix} files {' '.join(self.suffixes)}"
            raise walked.nothing(what, fix, "input.follow_links")
        names = [name for _, name in pairs]
        if self.labeled is False:
            return names, np.zeros(0, np.int64), check_classes((), classes, self.path)
        numbers, known = number_classes([label for label, _ in pairs], classes, self.path)
        return names, np.array(numbers, np.int64), known

    def described(self) -> Manifest:
        names, _, classes = self.items
        note = self.walked.left_out
        if loose := len(self.walked.names) - len(names):
            note += f" ({loose} {self.noun}s in no subfolder left out)"
        return Manifest(len(names), {}, classes, source=f"folder {self.path}{note}")

    def row(self, index: int) -> Row:
        field = self.noun
        if self.items[0][0].lower().endswith(SOUNDS):
            field = "audio"
        row: Row = {field: read_file(self.name(index))}
        if self.labeled is not False:
            row["label"] = np.array(self.items[1][index])
        return row

    def key(self, index: int) -> str:
        return self.items[0][index]

    def name(self, index: int) -> str:
        return self._root + self.items[0][index]

    def item_files(self, index: int) -> Sequence[str]:
        return (self.name(index),)
