"""Facts of records for tests of orders."""

from dataclasses import replace

import numpy as np
import torch

from framework.order.batches import Order


class Facts:
    """The facts of records with these numbers, the same for every field."""

    def __init__(self, values, lengths=None):
        self.all = np.asarray(values)
        self.counts = np.ones(len(self.all), np.int64) if lengths is None else np.asarray(lengths)

    classes = ()
    names = ()

    def answer(self, name):
        return None

    def lengths(self, name):
        return torch.from_numpy(self.counts)

    def values(self, name):
        return self.all

    def rows(self, name):
        return self.all, self.counts


def counts_of(order: Order, epoch: int) -> np.ndarray:
    """Return how often each record occurs in an epoch."""
    records = [share.indices for share in order.shares(epoch)]
    return np.bincount(torch.cat(records).numpy(), minlength=order.num_records)


def batches(order: Order, epoch: int = 0, start: int = 0) -> list[list[int]]:
    """Return the records of each step without fillers: rank 0's, then rank 1's, and so on."""
    steps = []
    ranks = [replace(order, rank=rank).shares(epoch, start) for rank in range(order.world_size)]
    for shares in zip(*ranks, strict=True):
        real = [share.indices.tolist() for share in shares if share.weight]
        steps.append([index for part in real for index in part])
    return steps
