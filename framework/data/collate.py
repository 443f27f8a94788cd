"""How the ragged arrays of a batch's records are put together."""

import math
from collections.abc import Mapping
from threading import Lock
from typing import final

import torch

from framework.contracts.batch import Batch
from framework.contracts.data import Content
from framework.contracts.records import CARRIED, Field, Ragged
from framework.store.gather import padded

WAYS = ("pad", "nested", "list")
LENGTH = "_length"  # the ending of the field that says how many rows of a padded array are real


def length_name(name: str, field: Field, way: str) -> str | None:
    """Return the name of the field that a ragged field adds to a batch, or None."""
    is_padded = field.encoding == "ragged" and field.kind not in CARRIED
    return f"{name}{LENGTH}" if is_padded and way == "pad" else None


def collated(name: str, field: Field, ragged: Ragged, way: str) -> Batch:
    """Return what a batch has of a ragged field.

    Texts become a list of B ``str``, byte strings a list of B ``bytes``. Other arrays become, by
    ``way``:

    - ``pad``: [B, longest, *rest] with zeros behind, and ``<name>_length`` int64 [B];
    - ``nested``: ``Ragged``, which ``with_nested`` makes a nested tensor;
    - ``list``: a list of B tensors.

    Raises:
        UnicodeDecodeError: A text is not UTF-8.
    """
    if field.kind == "text":
        return {name: [bytes(array).decode() for array in ragged.arrays()]}
    if field.kind == "bytes":
        return {name: [bytes(array) for array in ragged.arrays()]}
    if way == "pad":
        return {name: padded(ragged), f"{name}{LENGTH}": ragged.lengths}
    if way == "list":
        return {name: list(ragged.values.split(ragged.lengths.tolist()))}
    return {name: ragged}


@final
class Padding:
    """Counts how much of padded arrays is padding.

    ``names`` holds the names of the lengths, by field. One thread adds, any thread takes.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._lock = Lock()
        self._padding = 0
        self._whole = 0

    def add(self, batch: Batch) -> None:
        """Count the values of a batch."""
        for name, length_name in self._names.items():
            array = batch[name]
            row_size = math.prod(array.shape[2:])
            whole = array.shape[0] * array.shape[1] * row_size
            with self._lock:
                self._padding += whole - int(batch[length_name].sum()) * row_size
                self._whole += whole

    def take(self) -> Content:
        """Return the counts since the last call; {} without padded arrays."""
        if not self._names:
            return {}
        with self._lock:
            counts = float(self._padding), float(self._whole)
            self._padding = self._whole = 0
        return {"padding": counts}


def with_nested(batch: Batch) -> Batch:
    """Return the batch with nested tensors in the jagged layout. They share memory with it."""
    nested = dict(batch)
    for name, value in batch.items():
        if isinstance(value, Ragged):
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), value.lengths.cumsum(0)])
            nested[name] = torch.nested.nested_tensor_from_jagged(value.values, offsets)
    return nested
