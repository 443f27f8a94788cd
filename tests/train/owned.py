"""Objectives that own weights and state, and what a plain loop learns with them."""

import random
import threading
from collections import defaultdict, deque
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from framework.contracts.training import Outcome
from framework.train.objective_state import ObjectiveState
from tests.fakes import make_data, make_model, make_trainer


class Centers(nn.Module):
    """A loss with a center for each class, as ArcFace has, and the running mean of a feature."""

    def __init__(self, seed=5):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randn(3, 3, generator=generator, dtype=torch.float64)
        self.weights = nn.Parameter(weights)
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def forward(self, features, labels):
        if self.training and torch.is_grad_enabled():
            self.mean.lerp_(features.detach().mean(0), 0.1)
        return nn.functional.cross_entropy(features @ self.weights, labels)


class ByCenters:
    """A plain object that owns a module."""

    def __init__(self, seed=5):
        self.centers = Centers(seed)

    def __call__(self, model, batch):
        return Outcome(self.centers(model(batch["x"]), batch["y"]), {})

    def better(self, new, old):
        return new["loss"] < old["loss"]


class Slotted:
    """Has its numbers in slots."""

    __slots__ = ("average",)

    def __init__(self):
        self.average = 1.0


class Deep:
    """Owns weights and state in places that no attribute of its own names."""

    def __init__(self):
        self.parts = {"heads": [nn.Parameter(torch.eye(3, dtype=torch.float64))]}
        self.meter = SimpleNamespace(average=1.0)
        self.slotted = Slotted()
        self.counts = defaultdict(float)
        self.generator = torch.Generator().manual_seed(1)
        self.draws = (random.Random(1), np.random.default_rng(1))
        self.queue = deque(maxlen=2)
        self.array = np.zeros(2)
        self.last = None
        self.scale = self.made()
        self.lock = threading.Lock()

    def made(self):
        seen, layer = 0, Centers()

        def scale(loss):
            nonlocal seen
            seen += 1
            return loss * (1 + seen), layer.weights.sum()

        return partial(scale)

    def __call__(self, model, batch):
        loss = nn.functional.cross_entropy(model(batch["x"]) @ self.parts["heads"][0], batch["y"])
        if model.training:
            loss, extra = self.scale(loss)
            self.meter.average += loss.item()
            self.slotted.average += loss.item()
            self.counts["steps"] += 1
            self.queue.append(self.draws[0].random() + self.draws[1].random())
            self.array += 1
            self.last = loss + extra * torch.rand((), generator=self.generator)
            loss = self.last + sum(self.queue) * loss * self.array.sum() * self.counts["steps"]
        return Outcome(loss * self.meter.average * self.slotted.average, {})

    def better(self, new, old):
        return new["loss"] < old["loss"]


def trainer_of(objective, parallel, epochs=2, **parts):
    """Return a Trainer that also trains what the objective owns."""
    owned = ObjectiveState(objective, parallel)
    model = parallel.wrap(make_model())
    groups = [{"params": [*model.parameters()]}, {"params": [*owned.weights]}]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]], 0.05)
    parts = {"report_every": 100, **parts}
    parts |= {"owned": owned, "optimizer": optimizer, "parallel": parallel, "epochs": epochs}
    return make_trainer(make_data(24), 8, model=model, objective=objective, **parts)


def learned_with_centers():
    """Return the centers after two epochs of a plain loop in one process."""
    data, model, centers = make_data(24), make_model(), Centers()
    optimizer = torch.optim.Adam([*model.parameters(), *centers.parameters()], 0.05)
    for _ in range(2):
        for x, y in zip(*(values.split(8) for values in data.values()), strict=True):
            optimizer.zero_grad()
            centers(model(x), y).backward()
            optimizer.step()
    return centers.weights.detach().flatten().tolist()
