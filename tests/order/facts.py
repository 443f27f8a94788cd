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
    """How often an epoch has each record."""
    records = [share.indices for share in order.shares(epoch)]
    return np.bincount(torch.cat(records).numpy(), minlength=order.num_records)


def batches(order: Order, epoch: int = 0, start: int = 0) -> list[list[int]]:
    """The records of each step, without fillers: those of rank 0, then of rank 1, and so on."""
    steps = []
    ranks = [replace(order, rank=rank).shares(epoch, start) for rank in range(order.world_size)]
    for shares in zip(*ranks, strict=True):
        real = [share.indices.tolist() for share in shares if share.weight]
        steps.append([index for part in real for index in part])
    return steps
