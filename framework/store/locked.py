"""A store's raw fields in page-locked memory, from which a GPU copies whole values by itself."""

import math
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import LABEL, Field, KnowsPlaces, Records, RecordStore
from framework.store.gather import gather_at
from framework.system.copy_engine import LockedFiles, Pieces
from framework.system.native import find

# The cores gather smaller values. Of 48 KiB, an H100 copies 50 GB/s; of 24 KiB, 5.5.
LEAST_BYTES = 48 << 10


@final
class LockedRecords:
    """Reads records of a store whose files are in memory, for a thread that feeds a GPU.

    Args:
        store: What ``lockable`` returned.
        device: The GPU.

    Raises:
        CopyEngineError: The GPU cannot copy values by itself.
        OSError: A file cannot be opened for writing.
    """

    def __init__(self, store: KnowsPlaces, device: torch.device) -> None:
        self._store = store
        self._values = {name: _Value(field) for name, field in store.manifest.fields.items()}
        self._files = LockedFiles(store.paths, device)

    def __call__(self, indices: Tensor) -> Records:
        """Return the records at ``indices`` (int64 [B]): ``Pieces`` of large fields, or tensors.

        Labels are always tensors, since the host may renumber them.
        """
        places = self._store.places(indices)
        starts = self._files.starts[places.files]
        return {name: self._read(name, starts + offsets) for name, offsets in places.starts.items()}

    def close(self) -> None:
        """Unlock the memory. All copies have to be queued."""
        self._files.close()

    def _read(self, name: str, addresses: Tensor) -> Any:
        value = self._values[name]
        if value.num_bytes >= LEAST_BYTES and name != LABEL:
            return Pieces(addresses, value.shape, value.dtype, self._files.maps)
        return gather_at(addresses, value.shape, value.dtype)


@final
class _Value:
    """What a value of a raw field is."""

    def __init__(self, field: Field) -> None:
        self.shape = tuple(size or 0 for size in field.shape)
        self.dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
        self.num_bytes = math.prod(self.shape) * self.dtype.itemsize


def lockable(store: RecordStore) -> KnowsPlaces | None:
    """Return the store if all its fields are raw, whole in its files, and some are large."""
    if not isinstance(store, KnowsPlaces) or find("paceline_gather") is None:
        return None
    fields = store.manifest.fields
    if not store.manifest.num_records or not fields:
        return None
    if any(field.encoding != "raw" for field in fields.values()):
        return None
    if max(_Value(field).num_bytes for field in fields.values()) < LEAST_BYTES:
        return None
    if store.places(torch.empty(0, dtype=torch.int64)).starts.keys() != fields.keys():
        return None
    return store
