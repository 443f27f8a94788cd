"""Datasets and DataLoaders as a user may write them. They know nothing of ours."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Clips(Dataset):
    """A wave, a label and a text. With ``draws``, the wave is shifted by random numbers."""

    classes = ("low", "high")

    def __init__(self, count=20, draws=True):
        self.count = count
        self.draws = draws

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        wave = torch.full((3,), float(index))
        if self.draws:
            wave += random.random() + np.random.rand() + torch.rand(())  # noqa: NPY002  # as users write it
        return {"wave": wave, "label": index % 2, "text": f"clip {index}"}


class Endless(IterableDataset):
    """Batches of one wave and a label, without a length."""

    def __iter__(self):
        for number in range(1000):
            yield torch.full((3,), float(number)), number % 2


class Broken(Clips):
    """Fails at its sixth item."""

    def __getitem__(self, index):
        if index == 5:
            raise LookupError("no such clip")  # LINE broken
        return super().__getitem__(index)


class Once:
    def __len__(self):
        raise OSError("no folder")

    def __getitem__(self, index):
        return {}


def pairs(count=20):
    return [(torch.full((3,), float(number)), number % 2) for number in range(count)]


def make_loader(count=20, **options):
    return DataLoader(pairs(count), **{"batch_size": 4, "shuffle": True, **options})


def fields(items):
    """Collate as a user may: pad nothing, rename everything."""
    return {"x": torch.stack([item["wave"] for item in items]), "n": len(items)}
