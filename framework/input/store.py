"""Stores already packed: into another format, layout or size, or several into one."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np
import torch

from framework.contracts.records import Chunk, Manifest, Records, RecordStore
from framework.errors import DataError
from framework.store.open_store import open_store


@final
class StoreInput:
    """The records of one or several stores, one after the other, under their own keys; read by range, never all at once.

    Their fields must agree. Classes are united by name, in the order in which they come first, and labels renumbered. A record whose
    bytes are not what their CRC32 says is an error: damage is not packed again.
    """

    def __init__(self, path: str | Sequence[str]) -> None:
        self.paths = [path] if isinstance(path, str) else [str(one) for one in path]
        if not self.paths:
            raise DataError(110, "input.path", "no store", "give at least one")

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreInput, (self.paths,)  # another process opens the stores itself

    @cached_property
    def stores(self) -> list[RecordStore]:
        return [open_store(path) for path in self.paths]

    @cached_property
    def starts(self) -> list[int]:
        """The number of each store's first record, and of all records."""
        return np.cumsum([0, *(store.manifest.num_records for store in self.stores)]).tolist()

    @cached_property
    def manifest(self) -> Manifest:
        first, *others = (store.manifest for store in self.stores)
        for path, other in zip(self.paths[1:], others, strict=True):
            _check_alike(self.paths[0], first, path, other)
        if not self.starts[-1]:
            raise DataError(110, self.paths[0], "no record", "give stores that hold some")
        options = first.options if all(other.options == first.options for other in others) else {}
        source = first.source if not others else f"stores {', '.join(self.paths)}"
        label = first.fields.get("label")
        if (
            others
            and label
            and label.dtype in ("uint8", "int8")
            and len(self.classes) > np.iinfo(label.dtype).max + 1
        ):
            raise DataError(
                169,
                self.paths[0],
                f"{len(self.classes)} classes do not fit {label.dtype}",
                "pack wider labels first",
            )
        return Manifest(self.starts[-1], first.fields, self.classes, source=source, options=options)

    @cached_property
    def classes(self) -> list[str]:
        return list(dict.fromkeys(name for store in self.stores for name in store.manifest.classes))

    @cached_property
    def numbers(self) -> list[np.ndarray]:
        """For each store: the new number of each of its classes."""
        new = {name: number for number, name in enumerate(self.classes)}
        return [
            np.array([new[name] for name in store.manifest.classes], np.int64)
            for store in self.stores
        ]

    def read(self, start: int, stop: int) -> Chunk:
        parts = [
            self._read_one(number, start - first, stop - first)
            for number, first in enumerate(self.starts[:-1])
        ]
        fields = self.manifest.fields
        records: Records = {
            name: [image for part in parts for image in part.records[name]]
            if field.encoding == "image"
            else np.concatenate([part.records[name] for part in parts])
            for name, field in fields.items()
        }
        return Chunk(records, [key for part in parts for key in part.keys])

    def _read_one(self, number: int, start: int, stop: int) -> Chunk:
        """What of store ``number`` lies in the range; that may be nothing."""
        store = self.stores[number]
        indices = torch.arange(max(start, 0), max(start, 0, min(stop, store.manifest.num_records)))
        if not len(indices):
            return Chunk(
                {
                    name: _nothing(field.dtype, field.shape)
                    for name, field in store.manifest.fields.items()
                },
                [],
            )
        records = store.read(indices)
        if damaged := store.damaged(indices, records):
            what = "its bytes are not what their CRC32 says"
            raise DataError(
                166, store.name(damaged[0]), what, "see what else is damaged with paceline verify"
            )
        found = {name: _plain(values) for name, values in records.items()}
        return Chunk(
            self._renumbered(found, number, indices),
            [store.key(index) for index in indices.tolist()],
        )

    def _renumbered(self, records: Records, number: int, indices: torch.Tensor) -> Records:
        numbers = self.numbers[number]
        if len(self.stores) == 1 or not len(numbers) or "label" not in records:
            return records
        labels = records["label"]
        if ((labels < 0) | (labels >= len(numbers))).any():
            where = self.stores[number].name(int(indices[0]))
            raise DataError(
                161,
                where,
                f"a label from here on is none of the store's {len(numbers)} classes",
                "mend that store",
            )
        return {**records, "label": numbers[labels.astype(np.int64)].astype(labels.dtype)}

    def name(self, index: int) -> str:
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.stores[number].name(index - self.starts[number])


def _plain(values: Any) -> Any:
    return (
        values.numpy() if isinstance(values, torch.Tensor) else [bytes(value) for value in values]
    )


def _nothing(dtype: str, shape: Sequence[int | None]) -> Any:
    return np.empty((0, *(size or 0 for size in shape)), dtype)


def _check_alike(path: str, first: Manifest, other_path: str, other: Manifest) -> None:
    """DataError D169 where two stores cannot be one."""
    if other.fields != first.fields:
        what = f"its fields {_told(other)} are not {path}'s {_told(first)}"
        raise DataError(169, other_path, what, "pack it with the same pack.size and encode first")
    if bool(other.classes) != bool(first.classes):
        what = f"only one of it and {path} names its classes"
        raise DataError(169, other_path, what, "pack both with classes, or both without")


def _told(manifest: Manifest) -> str:
    return ", ".join(
        f"{name} {field.encoding} {field.dtype} {list(field.shape)} ({field.kind})"
        for name, field in manifest.fields.items()
    )
