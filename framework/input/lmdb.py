"""An LMDB file that anybody wrote: values that are found by the patterns of their keys."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import numpy as np

from framework.contracts.records import LABEL, Manifest
from framework.errors import ConfigError, DataError, listed
from framework.input.rows import Row, RowInput, places_of, shared_names, text_by_field
from framework.media import header, sound_video
from framework.store import foreign
from framework.store.lmdb_store import ForeignLMDB, key_expression


@final
class LMDBInput(RowInput):
    """A record for each number, or name, that the keys of all fields share.

    A value is an image file, a .npy file, a number as text, or a text. The texts of the field
    ``label`` are classes: integers are labels as they are, others are names. ``fields`` are texts
    of ``key_expression``; numbers may start anywhere. ``conf/input/lmdb.yaml`` describes the
    options.
    """

    def __init__(
        self, path: str, fields: Mapping[str, str], classes: Sequence[str] | None = None
    ) -> None:
        self.path, self.classes = path, classes
        example = '{image: "image-%09d", label: "label-%09d"}'
        self.patterns = text_by_field("fields", fields, example)
        for pattern in self.patterns.values():
            if key_expression(pattern).groups != 1:
                what = f"{pattern!r} must have one %d, %09d or %s"
                raise ConfigError(162, f"input.fields = {fields}", what, "mark what keys share")

    @cached_property
    def file(self) -> ForeignLMDB:
        return ForeignLMDB(self.path)

    @cached_property
    def items(self) -> tuple[list[dict[str, int]], list[str]]:
        """Each field's place, and the first one's key, by record. DataError D110, D160, D163."""
        keys = self.file.keys
        matches: dict[str, dict[Any, int]] = {}
        for field, pattern in self.patterns.items():
            kind = str if "%s" in pattern.replace("%%", "") else int
            matches[field] = places_of(self.path, keys, key_expression(pattern), kind)
        names = shared_names(self.path, matches)
        if not names:
            what = f"no key is as input.fields says; the first keys: {listed(keys[:10])}"
            raise DataError(110, self.path, what, "correct input.fields")
        if all(isinstance(name, int) for name in names):
            names.sort()
        first = next(iter(matches.values()))
        rows = [{field: match[name] for field, match in matches.items()} for name in names]
        return rows, [keys[first[name]] for name in names]

    @cached_property
    def labels(self) -> tuple[list[int], list[str]] | None:
        """A label for each record, and the classes, if the field ``label`` is text."""
        if LABEL not in self.patterns or LABEL in self.kinds:
            return None
        texts: list[str] = []
        for places in self.items[0]:
            text = foreign.short_text(self.file.read(places[LABEL]))
            if text is None:
                return None
            if not texts:
                number = foreign.number_of(text)
                if number is not None and number.dtype.kind == "f":
                    return None
            texts.append(text.strip())
        return foreign.label_column(texts, self.classes, self.path, self.name)

    def described(self) -> Manifest:
        classes = foreign.check_classes((), self.classes, self.path)
        if self.labels is not None:
            classes = self.labels[1]
        return Manifest(len(self.items[1]), {}, classes, source=f"lmdb {self.path}")

    def row(self, index: int) -> Row:
        row: Row = {}
        for field, place in self.items[0][index].items():
            if field == LABEL and self.labels is not None:
                row[field] = np.array(self.labels[0][index], np.int64)
                continue
            data = row[field] = self.file.read(place)
            kind = self.kinds.get(field)
            if kind == "text":
                row[field] = foreign.text_of(data, field, f"{self.name(index)}: {field}", "input")
            if kind in ("text", "bytes"):
                continue
            if data.startswith(foreign.NPY):
                row[field] = foreign.array_of_npy(data, self.name(index))
                continue
            text = foreign.short_text(data)
            if text is not None:
                number = foreign.number_of(text)
                row[field] = text if number is None else number
            elif not header.is_image(data) and not sound_video.is_sound(data):
                what = f"{field} is not an image, an array, a number or a short text"
                kind = "bytes"
                with suppress(UnicodeDecodeError):
                    data.decode()
                    kind = "text"
                fix = f"correct it, or add 'input.kinds={{{field}: {kind}}}'"
                raise DataError(106, self.name(index), what, fix)
        return row

    def key(self, index: int) -> str:
        return self.items[1][index]

    def item_files(self, index: int) -> Sequence[str]:
        return (self.file.path,)
