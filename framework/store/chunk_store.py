"""Stores over the records of an input: read into memory, or read when they are needed."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Chunk, Manifest, Ragged, RecordInput, Records
from framework.store.gather import joined
from framework.store.read_files import ask_item_files


@final
class ChunkStore:
    """The records of a chunk, which are in memory.

    Args:
        chunk: The records, and a key for each.
        manifest: Describes their fields. Fields of the chunk that it lacks are left out.
        name: Returns what errors call the record of a number.
    """

    def __init__(self, chunk: Chunk, manifest: Manifest, name: Callable[[int], str]) -> None:
        self.manifest = replace(manifest, num_records=len(chunk.keys))
        self.keys: Sequence[str] = chunk.keys
        self._records = {field: chunk.records[field] for field in manifest.fields}
        self._name = name

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        return {name: _taken(values, indices) for name, values in self._records.items()}

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return []  # the input has compared them

    def key(self, index: int) -> str:
        return self.keys[index]

    def name(self, index: int) -> str:
        return self._name(index)

    def check(self) -> None:
        pass  # no file can change it

    def close(self) -> None:
        pass


@final
class ItemStore:
    """The records of some items of an input, each of which is one record. Reads them when asked.

    Args:
        source: The input. Several threads may read at the same time.
        start: The first item.
        keys: The keys of the records.
        manifest: Describes the fields. Fields of the input that it lacks are left out.
    """

    def __init__(
        self, source: RecordInput, start: int, keys: Sequence[str], manifest: Manifest
    ) -> None:
        self.manifest = replace(manifest, num_records=len(keys))
        self.keys = keys
        self._source = source
        self._start = start

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        numbers = [self._start + index for index in indices.tolist()]
        first = numbers[0]
        if numbers == list(range(first, first + len(numbers))):
            ask_item_files(self._source, range(first, first + len(numbers)))
            chunk = self._source.read(first, first + len(numbers))
            return self._fields(chunk, torch.arange(len(numbers)))
        parts = [self._source.read(number, number + 1) for number in numbers]
        first = torch.zeros(1, dtype=torch.int64)
        records = [self._fields(chunk, first) for chunk in parts]
        return {name: joined([own[name] for own in records]) for name in records[0]}

    def _fields(self, chunk: Chunk, indices: Tensor) -> Records:
        return {name: _taken(chunk.records[name], indices) for name in self.manifest.fields}

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return []

    def key(self, index: int) -> str:
        return self.keys[index]

    def name(self, index: int) -> str:
        return self._source.name(self._start + index)

    def check(self) -> None:
        pass  # every read opens its file anew

    def close(self) -> None:
        pass


def as_read(values: Any) -> Any:
    """Return all values of a chunk's field as a store gives them."""
    return _taken(values, torch.arange(len(values)))


def _taken(values: Any, indices: Tensor) -> Any:
    """Return the values of some records as a store gives them."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values[indices.numpy()])
    chosen = [values[index] for index in indices.tolist()]
    if not chosen or not isinstance(chosen[0], np.ndarray):  # bytes of image files
        return chosen
    lengths = torch.tensor([len(array) for array in chosen])
    return Ragged(torch.from_numpy(np.concatenate(chosen)), lengths)
