"""A store over records that an input has read into memory."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Chunk, Manifest, Ragged, Records


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


def _taken(values: Any, indices: Tensor) -> Any:
    """Return the values of some records as a store gives them."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values[indices.numpy()])
    chosen = [values[index] for index in indices.tolist()]
    if not chosen or not isinstance(chosen[0], np.ndarray):  # bytes of image files
        return chosen
    lengths = torch.tensor([len(array) for array in chosen])
    return Ragged(torch.from_numpy(np.concatenate(chosen)), lengths)
