"""Facts of records for tests of orders."""

from dataclasses import replace

import numpy as np
import torch

from framework.order.batches import Order


class Facts:
    """The facts of records with these numbers or lengths, the same for every field."""

    classes = ()
    names = ()

    def __init__(self, values, lengths=None):
        self.all = np.asarray(values)
        self.counts = np.ones(len(self.all), np.int64) if lengths is None else np.asarray(lengths)

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


def steps_of(order: Order, epoch: int = 0, start: int = 0) -> list[list]:
    """Return the shares of each step without fillers, of all passes and ranks."""
    steps = [[] for _ in range(start, order.num_steps)]
    for rank in range(order.world_size):
        step = 0
        for share in replace(order, rank=rank).shares(epoch, start):
            if share.weight:
                steps[step].append(share)
            step += share.last
    return steps


def batches(order: Order, epoch: int = 0, start: int = 0) -> list[list[int]]:
    """Return the records of each step: rank 0's, then rank 1's, and so on."""
    steps = steps_of(order, epoch, start)
    return [[index for share in step for index in share.indices.tolist()] for step in steps]
