"""HDF5 with a type of variable length, for workload R.

The file is written as in h5py's documentation. It is read by batch, and by item in a DataLoader.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import h5py
import numpy as np
import torch
from peers.work import Epoch, Work
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

FILE = "variable.h5"


def joined(items: list[tuple[np.ndarray, int]]) -> tuple[Tensor, Tensor]:
    """Collate items. Return the values of all items, concatenated, and their numbers."""
    values = np.concatenate([array for array, _ in items])
    return torch.from_numpy(values), torch.tensor([number for _, number in items])


def by_batch(work: Work) -> Epoch:
    """Return epochs that read each batch in a single call, by sorted indices.

    This is the fastest way that h5py offers.
    """
    file = h5py.File(work.path(FILE), "r")
    values: Any = file["values"]

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = np.random.default_rng(number).permutation(work.num_records)
        for start in range(0, len(order), work.batch_size):
            places = np.sort(order[start : start + work.batch_size])
            yield torch.from_numpy(np.concatenate(values[places])), torch.from_numpy(places)

    return epoch


class Items(Dataset[Any]):
    """A Dataset that reads one record at a time, and opens the file in the worker."""

    def __init__(self, path: str, count: int) -> None:
        self.path, self.count = path, count

    @cached_property
    def values(self) -> Any:
        return h5py.File(self.path, "r")["values"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return self.values[number], number


def by_item(work: Work) -> Epoch:
    """Return epochs that read records one by one in the workers of a DataLoader."""
    made = DataLoader(
        Items(work.path(FILE), work.num_records),
        work.batch_size,
        shuffle=True,
        num_workers=work.num_workers,
        persistent_workers=True,
        collate_fn=joined,
    )
    return lambda _: iter(made)


def make_variable(work: Work) -> None:
    arrays = work.ragged()
    with h5py.File(work.path(FILE), "w") as file:
        data: Any = file.create_dataset("values", (len(arrays),), h5py.vlen_dtype(np.float32))
        for start in range(0, len(arrays), 1000):
            rows = np.empty(len(arrays[start : start + 1000]), object)
            rows[:] = arrays[start : start + 1000]
            data[start : start + 1000] = rows
