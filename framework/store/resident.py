"""Stores whose records are in memory, on a device, or in an input that reads them when asked."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import (
    LABEL,
    Chunk,
    Field,
    KnowsPlaces,
    Manifest,
    Ragged,
    RecordInput,
    Records,
    RecordStore,
)
from framework.errors import ConfigError, ResourceError
from framework.store.columns import column_of, lengths_of
from framework.store.files import ask_item_files
from framework.store.gather import gather_at, joined
from framework.system.native import find
from framework.system.page_locked import LockedFiles, Pieces


class _InputStore:
    """A store of records with ``keys``, of which an error calls that of a number ``name(number)``.

    Fields of the input that the manifest lacks are left out.
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


BLOCK_RECORDS = 4096  # read at a time
# The cores gather smaller values. Of 48 KiB, an H100 copies 50 GB/s; of 24 KiB, 5.5.
LEAST_BYTES = 48 << 10


@final
class ResidentStore:
    """A RecordStore of raw fields on ``device``. A batch is one gather per field.

    ConfigError C171 if a field is encoded. ResourceError R107, at the first read, if the store does
    not fit.
    """

    def __init__(self, store: RecordStore, device: torch.device) -> None:
        self.store = store
        self.device = device
        self._tensors: dict[str, Tensor] = {}
        encoded = [name for name, field in store.manifest.fields.items() if field.encoding != "raw"]
        if encoded:
            what = f"{encoded} is encoded or ragged; only plain arrays are kept on a device"
            fix = "pack images with pack.encode=raw, or set data.stage=ram"
            raise ConfigError(171, "data.stage = device", what, fix)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tensors": {}}

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        """Return tensors on the device. The first read copies the whole store there."""
        if not self._tensors:
            self._load()
        there = indices.to(self.device, non_blocking=True)
        return {name: tensor.index_select(0, there) for name, tensor in self._tensors.items()}

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return self.store.damaged(indices, {name: values.cpu() for name, values in records.items()})

    def column(self, name: str) -> Any:
        return column_of(self.store, name)

    def lengths(self, name: str) -> Tensor:
        return lengths_of(self.store, name)

    def key(self, index: int) -> str:
        return self.store.key(index)

    def name(self, index: int) -> str:
        return self.store.name(index)

    def check(self) -> None:
        self.store.check()

    def close(self) -> None:
        self._tensors = {}
        self.store.close()

    def _load(self) -> None:
        count = self.manifest.num_records
        try:
            for start in range(0, count, BLOCK_RECORDS):
                stop = min(start + BLOCK_RECORDS, count)
                for name, values in self.store.read(torch.arange(start, stop)).items():
                    if name not in self._tensors:
                        shape = (count, *values.shape[1:])
                        self._tensors[name] = values.new_empty(shape, device=self.device)
                    self._tensors[name][start:stop] = values.to(self.device)
        except (torch.OutOfMemoryError, MemoryError) as error:
            self._tensors = {}
            what = f"the set does not fit on {self.device}"
            fix = "set data.stage=ram or none"
            raise ResourceError(107, "data.stage = device", what, fix) from error
        self.store.close()


@final
class LockedRecords:
    """Reads records of a store in page-locked memory, for a thread that feeds a GPU.

    The GPU copies whole values from there by itself. ``store`` is what ``lockable`` returned.
    CopyEngineError if the GPU cannot copy so, OSError if a file cannot be opened for writing.
    """

    def __init__(self, store: KnowsPlaces, device: torch.device) -> None:
        self._store = store
        self._values = {name: _value_of(field) for name, field in store.manifest.fields.items()}
        self._files = LockedFiles(store.paths, device)

    def __call__(self, indices: Tensor) -> Records:
        """Return the records at ``indices`` (int64 [B]): ``Pieces`` of large fields, or tensors.

        Labels are always tensors, since the host may renumber them.
        """
        places = self._store.places(indices)
        starts = self._files.starts[places.files]
        records: Records = {}
        for name, offsets in places.starts.items():
            value = self._values[name]
            if value.num_bytes >= LEAST_BYTES and name != LABEL:
                maps = self._files.maps
                records[name] = Pieces(starts + offsets, value.shape, value.dtype, maps)
            else:
                records[name] = gather_at(starts + offsets, value.shape, value.dtype)
        return records

    def close(self) -> None:
        """Unlock the memory. All copies have to be queued."""
        self._files.close()


class _Value(NamedTuple):
    """What a value of a raw field is."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int


def _value_of(field: Field) -> _Value:
    shape = tuple(size or 0 for size in field.shape)
    dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
    return _Value(shape, dtype, math.prod(shape) * dtype.itemsize)


def lockable(store: RecordStore) -> KnowsPlaces | None:
    """Return the store if all its fields are raw, whole in its files, and some are large."""
    fields = store.manifest.fields
    if not isinstance(store, KnowsPlaces) or find("paceline_gather") is None:
        return None
    if any(field.encoding != "raw" for field in fields.values()):
        return None
    largest = max((_value_of(field).num_bytes for field in fields.values()), default=0)
    if not store.manifest.num_records or largest < LEAST_BYTES:
        return None
    places = store.places(torch.empty(0, dtype=torch.int64))
    return store if places.starts.keys() == fields.keys() else None
