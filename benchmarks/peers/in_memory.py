"""Loaders of D and E whose pixels are in memory, to see what loading costs if nothing is read.

`hdf5_sorted` is the exception: it reads from the file. Only `per_item` works image by image. All
others index a whole batch at once.
"""

import random
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import torch
from peers.textbook import planes
from peers.work import FLIP, MEAN, PADDING, STD, Epoch, Work
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset


def tensor_dataset(work: Work) -> Epoch:
    """Return epochs of D in which a batch sampler indexes a TensorDataset by whole batches."""
    dataset = TensorDataset(torch.from_numpy(planes(work)), torch.arange(work.num_records))
    sampler = BatchSampler(RandomSampler(dataset), work.batch_size, drop_last=False)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=None, sampler=sampler)
    return lambda _: iter(loader)


def hdf5_whole(work: Work) -> Epoch:
    """Return epochs of D that index an array by batch.

    The whole HDF5 dataset is read at the start, as textbooks advise.
    """
    with h5py.File(work.path("planes.h5"), "r") as file:
        pixels = file["x"][:]

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in _orders(work, number):
            yield torch.from_numpy(pixels[indices]), torch.from_numpy(indices)

    return epoch


def hdf5_sorted(work: Work) -> Epoch:
    """Return epochs of D that read with h5py's fancy indexing, which needs sorted indices.

    Each batch is read in sorted order and then put back into the shuffled one.
    """
    dataset: Any = h5py.File(work.path("planes.h5"), "r")["x"]

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in _orders(work, number):
            order = np.argsort(indices)
            batch = np.empty((len(indices), *dataset.shape[1:]), np.uint8)
            batch[order] = dataset[indices[order]]
            yield torch.from_numpy(batch), torch.from_numpy(indices)

    return epoch


def _orders(work: Work, number: int) -> Iterator[np.ndarray]:
    """Yield the indices of each batch of an epoch, shuffled."""
    order = np.random.default_rng(number).permutation(work.num_records)
    for start in range(0, len(order), work.batch_size):
        yield order[start : start + work.batch_size]


class Augmented(Dataset[Any]):
    """A Dataset for E that pads all images beforehand, and crops and flips one per item.

    Batches are normalized later, with ``scale`` and ``shift``.
    """

    def __init__(self, work: Work) -> None:
        self.pixels = torch.from_numpy(planes(work))
        scale = 1 / (255 * torch.tensor(STD))
        self.scale, self.shift = (
            scale.view(-1, 1, 1),
            (-torch.tensor(MEAN) / torch.tensor(STD)).view(-1, 1, 1),
        )
        self.padded = torch.nn.functional.pad(self.pixels, (PADDING,) * 4)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        top, left = random.randint(0, 2 * PADDING), random.randint(0, 2 * PADDING)
        image = self.padded[number, :, top : top + 32, left : left + 32]
        if random.random() < FLIP:
            image = image.flip(2)
        return image, number


def per_item(work: Work) -> Epoch:
    """Return epochs of E whose worker processes crop and flip image by image.

    The same workers normalize whole batches, which is cheaper.
    """
    dataset = Augmented(work)

    def collate(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        images = torch.stack([image for image, _ in items])
        return images * dataset.scale + dataset.shift, torch.tensor([number for _, number in items])

    loader = DataLoader(
        dataset,
        work.batch_size,
        shuffle=True,
        num_workers=work.num_workers,
        persistent_workers=True,
        collate_fn=collate,
    )
    return lambda _: iter(loader)


def vectorized(work: Work) -> Epoch:
    """Return epochs of E that gather rows of padded images, then columns, for a whole batch.

    This is the fastest of five ways that we tried. Advanced indexing in either layout is half as
    fast.
    """
    data = Augmented(work)
    side = 32 + 2 * PADDING
    all_rows, span, planes_of = data.padded.reshape(-1, side), torch.arange(32), torch.arange(3)

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in torch.randperm(work.num_records).split(work.batch_size):
            offsets = torch.randint(0, 2 * PADDING + 1, (len(indices), 2))
            columns = offsets[:, 1:] + span
            columns = torch.where(torch.rand(len(indices), 1) < FLIP, columns.flip(1), columns)
            first_rows = (indices[:, None] * 3 + planes_of) * side
            rows = first_rows[:, :, None] + (offsets[:, :1] + span)[:, None, :]
            images = all_rows.index_select(0, rows.flatten()).view(-1, 3, 32, side)
            images = images.gather(3, columns[:, None, None, :].expand(-1, 3, 32, -1))
            yield images * data.scale + data.shift, indices

    return epoch
