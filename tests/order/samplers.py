"""Samplers as users write them."""

import random

import numpy as np
import torch
from torch.utils.data import Sampler


class Pairs(Sampler):
    """A batch sampler: P classes with K records each, drawn with repeats, by the epoch."""

    def __init__(self, labels, seed, p=3, k=2, steps=5):
        self.members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        self.seed, self.p, self.k, self.steps = seed, p, k, steps
        self.epoch = self.asked = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.steps

    def __iter__(self):
        rng = np.random.default_rng([self.seed, self.epoch])
        for _ in range(self.steps):
            self.asked += 1
            classes = rng.choice(len(self.members), self.p, replace=False)
            yield [int(i) for c in classes for i in rng.choice(self.members[c], self.k)]


class Remembered:
    """A batch sampler with a generator of its own, which it saves. It does not know its length."""

    def __init__(self, num_records, batch_size, seed):
        self.num_records, self.batch_size = num_records, batch_size
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            yield torch.randint(self.num_records, [self.batch_size], generator=self.generator)

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class Forgetful(Remembered):
    """The same without a state."""

    state_dict = load_state_dict = None


class Global:
    """A sampler of single records, which draws from the generators of the process."""

    def __init__(self, num_records):
        self.num_records = num_records

    def __len__(self):
        return self.num_records

    def __iter__(self):
        for _ in range(self.num_records):
            yield random.randrange(self.num_records)


class OfRank(Global):
    """A sampler that gives each rank records of its own."""

    rank = 0

    def __iter__(self):
        return iter(range(self.rank, self.num_records, 2))


class Growing:
    """A batch sampler that gives the records that ``learned`` names, and saves ``learned``."""

    def __init__(self):
        self.learned = [0, 1, 2, 3]

    def __len__(self):
        return 4

    def __iter__(self):
        for _ in range(4):
            yield self.learned  # the same list again and again

    def state_dict(self):
        return {"learned": list(self.learned)}

    def load_state_dict(self, state):
        self.learned[:] = state["learned"]
