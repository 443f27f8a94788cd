"""Objectives with phases, and models that they train part by part."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from framework.contracts.training import Outcome
from framework.optim.joined import Joined
from tests.fakes import make_data, make_trainer


class InTurn:
    """Train the layers of a classifier of digits in turn."""

    phases = ("body", "head")

    def __call__(self, model, batch, phase=None):
        return Outcome(cross_entropy(model(batch["image"]), batch["label"]), {})

    def better(self, new, old):
        return new["loss"] < old["loss"]


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.made = nn.Linear(4, 3).double()
        self.judge = nn.Linear(3, 1).double()


class Duel:
    """Two parts that move against each other. ``counts`` weighs records by their class."""

    phases = ("judge", "made")

    def __init__(self, counts=False):
        self.counts = counts

    def __call__(self, model, batch, phase=None):
        says = model.judge(model.made(batch["x"])).squeeze(1)
        weight = batch["y"] if self.counts else torch.ones_like(batch["y"])
        count = weight.sum() if self.counts else None
        loss = (weight * (says - float(phase == "judge")).square()).sum() / weight.sum()
        return Outcome(loss, {f"{phase}_says": says.detach()}, count)

    def better(self, new, old):
        return new["loss"] < old["loss"]


def optimizer_of(model):
    judge = torch.optim.SGD(model.judge.parameters(), lr=0.1, momentum=0.9)
    return Joined({"judge": judge, "made": torch.optim.Adam(model.made.parameters(), lr=0.01)})


def duel(data=None, objective=None, **parts):
    """Return a Trainer of two parts in turn."""
    model = Pair()
    optimizer = optimizer_of(model)
    phases = {name: optimizer.parts[name] for name in Duel.phases}
    given = {"objective": objective or Duel(), "optimizer": optimizer, "phases": phases}
    return make_trainer(data or make_data(18), model=model, **given, **parts)
