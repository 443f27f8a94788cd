"""Stores that are packed already: into another format, layout or size, or several into one."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np
import torch

from framework.contracts.records import Chunk, Manifest, RecordStore
from framework.errors import DataError
from framework.pack.engine.jobs import joined
from framework.pack.engine.publish import as_written, keys_of
from framework.store.open_store import open_store
from framework.store.shards import MANIFEST
from framework.store.versions import layer_paths, split_version


@final
class StoreInput:
    """The records of one store or several, in order, under their own keys.

    The fields of all stores must agree. Classes are united by name, in the order in which they
    come first, and labels are renumbered. Records are read by range. A record that does not match
    its CRC32 is an error, so that damage is not packed again.
    """

    def __init__(self, path: str | Sequence[str]) -> None:
        self.paths = [path] if isinstance(path, str) else [str(part) for part in path]
        if not self.paths:
            raise DataError(110, "input.path", "no store", "give at least one")

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreInput, (self.paths,)  # another process opens the stores itself

    @cached_property
    def stores(self) -> list[RecordStore]:
        return [open_store(path) for path in self.paths]

    @cached_property
    def starts(self) -> list[int]:
        """The number of each store's first record, and the number of all records."""
        return np.cumsum([0, *(store.manifest.num_records for store in self.stores)]).tolist()

    @cached_property
    def manifest(self) -> Manifest:
        first, *others = (store.manifest for store in self.stores)
        for path, other in zip(self.paths[1:], others, strict=True):
            _check_alike(self.paths[0], first, path, other)
        if not self.starts[-1]:
            raise DataError(110, self.paths[0], "no record", "give stores that hold some")
        label = first.fields.get("label")
        if others and label and label.dtype in ("uint8", "int8"):
            num_classes = len(self.classes)
            if num_classes > np.iinfo(label.dtype).max + 1:
                what = f"{num_classes} classes do not fit {label.dtype}"
                raise DataError(169, self.paths[0], what, "pack wider labels first")
        options, source = first.options, first.source
        if any(other.options != options for other in others):
            options = {}
        if others:
            source = f"stores {', '.join(self.paths)}"
        return Manifest(self.starts[-1], first.fields, self.classes, source=source, options=options)

    @cached_property
    def classes(self) -> list[str]:
        return list(dict.fromkeys(name for store in self.stores for name in store.manifest.classes))

    @cached_property
    def numbers(self) -> list[np.ndarray]:
        """The new number of each class, for each store."""
        new = {name: number for number, name in enumerate(self.classes)}
        return [
            np.array([new[name] for name in store.manifest.classes], np.int64)
            for store in self.stores
        ]

    def read(self, start: int, stop: int) -> Chunk:
        parts: list[Chunk] = []
        for number, first in enumerate(self.starts[:-1]):
            begin, end = max(start, first), min(stop, self.starts[number + 1])
            if begin < end:
                parts.append(self._read_range(number, begin - first, end - first))
        return joined(parts, self.manifest.fields)

    def _read_range(self, number: int, start: int, stop: int) -> Chunk:
        """Return records ``start``..``stop`` of store ``number``."""
        store, indices = self.stores[number], torch.arange(start, stop)
        store.check()  # an open store stays readable after its file was replaced
        read = store.read(indices)
        if damaged := store.damaged(indices, read):
            what = "its bytes are not what their CRC32 says"
            fix = "see what else is damaged with paceline verify"
            raise DataError(166, store.name(damaged[0]), what, fix)
        records = as_written(read)
        if len(self.stores) > 1 and len(self.numbers[number]) and "label" in records:
            records["label"] = self._renumbered(records["label"], number, start)
        return Chunk(records, keys_of(store, indices))

    def _renumbered(self, labels: Any, number: int, start: int) -> Any:
        """Return the labels of the records of a store from ``start`` as numbers of all classes.

        ``labels`` is an array, or a list of arrays if each record has several. DataError D161.
        """
        if isinstance(labels, list):
            rows = range(start, start + len(labels))
            pairs = zip(labels, rows, strict=True)
            return [self._renumbered(array, number, row) for array, row in pairs]
        numbers = self.numbers[number]
        if ((labels < 0) | (labels >= len(numbers))).any():
            what = f"a label from this record on is none of the store's {len(numbers)} classes"
            raise DataError(161, self.stores[number].name(start), what, "correct that store")
        return numbers[labels.astype(np.int64)].astype(labels.dtype)

    def name(self, index: int) -> str:
        number = self._store_number(index)
        return self.stores[number].name(index - self.starts[number])

    def item_files(self, index: int) -> Sequence[str]:
        """Return a store's file, or the manifest with its files' checksums, and its layers."""
        path = self.paths[self._store_number(index)]
        base = split_version(path).path
        if os.path.isdir(base):
            base = os.path.join(base, MANIFEST)
        return [base, *layer_paths(path)]

    def range_files(self, start: int, stop: int) -> Sequence[str] | None:
        if any(field.encoding != "raw" for field in self.manifest.fields.values()):
            return None
        first, last = self._store_number(start), self._store_number(stop - 1)
        numbers = range(first, last + 1)
        return [path for number in numbers for path in self.item_files(self.starts[number])]

    def _store_number(self, index: int) -> int:
        return int(np.searchsorted(self.starts, index, side="right")) - 1


def _check_alike(path: str, first: Manifest, other_path: str, other: Manifest) -> None:
    """Check that two stores can be united. DataError D169."""
    if other.fields != first.fields:
        what = f"its fields {_fields_text(other)} are not {path}'s {_fields_text(first)}"
        raise DataError(169, other_path, what, "pack it with the same pack.size and encode first")
    if bool(other.classes) != bool(first.classes):
        what = f"only one of it and {path} names its classes"
        raise DataError(169, other_path, what, "pack both with classes, or both without")


def _fields_text(manifest: Manifest) -> str:
    return ", ".join(
        f"{name} {field.encoding} {field.dtype} {list(field.shape)} ({field.kind})"
        for name, field in manifest.fields.items()
    )
