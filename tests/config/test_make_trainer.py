from itertools import count

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from framework.config.make_trainer import make_trainer
from framework.contracts.training import Watcher
from framework.errors import ConfigError
from framework.objective.classify import Classify
from framework.train.goal import Goal
from tests.data.own_items import make_loader, pairs


def trained(train, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    objective = Classify("wave", "label", label_smoothing=0.0)
    options = {"epochs": 2, "fields": ["wave", "label"], "say": lambda _: None, **options}
    trainer = make_trainer(model, objective, optimizer, train=train, **options)
    trainer.fit()
    return trainer


def test_a_loader_trains_as_in_a_plain_loop():
    trainer = trained(make_loader(shuffle=False))
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(2):
        for wave, label in make_loader(shuffle=False):
            nn.functional.cross_entropy(model(wave), label).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(trainer.parts.model.weight, model.weight)
    assert trainer.progress.step == 10


def test_a_seed_decides_the_order_of_a_loader_that_shuffles():
    weights = [trained(make_loader(), seed=seed).parts.model.weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_it_validates_and_measures():
    trainer = trained(make_loader(), val=DataLoader(pairs(6), batch_size=4))
    assert {"loss", "accuracy"} <= set(trainer.val_means)
    assert {"wait", "forward", "backward"} <= set(trainer.spans_s)


def test_one_note_says_what_is_not_promised():
    notes = []
    trained(make_loader(), val=make_loader(), say=notes.append)
    assert len(notes) == 1
    assert "resume" in notes[0]


class Counts(Watcher):
    """Ends a run after its second validation."""

    num_seen = 0

    def after_validation(self, moment):
        self.num_seen += 1
        return "enough" if self.num_seen == 2 else None


def test_several_validation_sets_a_goal_and_watchers():
    val = {name: DataLoader(pairs(6), batch_size=4) for name in ("a", "b")}
    watchers = {"counts": Counts()}
    trainer = trained(
        make_loader(), val=val, epochs=5, watchers=watchers, best=Goal("b.loss", False)
    )
    assert {"a.loss", "b.loss"} <= set(trainer.val_means)
    assert (trainer.progress.epoch, trainer.ended) == (2, "enough")


def test_a_loader_without_a_length_needs_a_number_of_batches():
    class Endless(IterableDataset):
        def __iter__(self):
            return ((torch.zeros(3), number % 2) for number in count())

    endless = DataLoader(Endless(), batch_size=4)
    with pytest.raises(ConfigError, match=r"C235.*in Python num_batches=1000"):
        trained(endless)
    assert trained(endless, num_batches=5).progress.step == 10
