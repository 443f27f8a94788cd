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


class _InputStore:
    """What both kinds of stores promise beside reading.

    Args:
        keys: A key for each record.
        manifest: Describes the fields. Fields of the input that it lacks are left out.
        name: Returns what errors call the record of a number.
    """

    def __init__(self, keys: Sequence[str], manifest: Manifest, name: Callable[[int], str]) -> None:
        self.manifest = replace(manifest, num_records=len(keys))
        self.keys = keys
        self._name = name

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return []  # the input has compared them

    def key(self, index: int) -> str:
        return self.keys[index]

    def name(self, index: int) -> str:
        return self._name(index)

    def check(self) -> None:
        pass  # every read opens its file anew

    def close(self) -> None:
        pass

    def _fields(self, records: Records, indices: Tensor) -> Records:
        return {name: _taken(records[name], indices) for name in self.manifest.fields}


@final
class ChunkStore(_InputStore):
    """The records of a chunk, which are in memory."""

    def __init__(self, chunk: Chunk, manifest: Manifest, name: Callable[[int], str]) -> None:
        super().__init__(chunk.keys, manifest, name)
        self._records = chunk.records

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        return self._fields(self._records, indices)


@final
class ItemStore(_InputStore):
    """The records of the items of an input from ``start`` on. Reads them when asked.

    Each item is one record, and several threads may read at the same time.
    """

    def __init__(
        self, source: RecordInput, start: int, keys: Sequence[str], manifest: Manifest
    ) -> None:
        super().__init__(keys, manifest, lambda index: source.name(start + index))
        self._source = source
        self._start = start

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        numbers = [self._start + index for index in indices.tolist()]
        items = range(numbers[0], numbers[0] + len(numbers))
        if numbers == list(items):
            ask_item_files(self._source, items)
            chunk = self._source.read(items.start, items.stop)
            return self._fields(chunk.records, torch.arange(len(numbers)))
        chunks = [self._source.read(number, number + 1) for number in numbers]
        first = torch.zeros(1, dtype=torch.int64)
        records = [self._fields(chunk.records, first) for chunk in chunks]
        return {name: joined([own[name] for own in records]) for name in records[0]}


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
