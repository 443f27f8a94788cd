"""Frozen layers: what freezes, when it thaws, and that a resumed run learns the same bits."""

import copy

import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.measure.clock import NoClock
from framework.train.parameter_groups import thaws_of
from framework.train.weights import Freeze, freeze_layers
from tests.fakes import FakeCheckpoints, make_data, make_trainer
from tests.train.states import average, same, saved_at
from tests.train.test_cuda_graph import Again

FREEZE = {"stem": 5, "body": None}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False), nn.ReLU())
        self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def frozen(model, freeze=FREEZE, rewrap=lambda wrapped: wrapped):
    return Freeze(model, freeze_layers(model, freeze), thaws_of(freeze), rewrap)


def make(freeze=FREEZE, **parts):
    """Return a Trainer over epochs of four whole batches and a short one, with weight decay."""
    model = Net()
    layers = frozen(model, freeze)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125, weight_decay=0.5, fused=True)
    parts = {"freeze": layers, "optimizer": optimizer, "clock": NoClock(), "epochs": 3, **parts}
    return make_trainer(make_data(18, torch.float32), 4, model=model, **parts)


def trained(*arguments, **parts):
    own = make(*arguments, **parts)
    torch.manual_seed(1)
    own.fit()
    return own


def moved(own):
    """Return the names of the weights and buffers that differ from those of a new model."""
    before = Net().state_dict()
    after = own.stepper.model.state_dict()
    return {name for name, value in after.items() if not torch.equal(value, before[name])}


def test_frozen_layers_keep_their_bits_and_the_head_learns_its_statistics():
    own = trained(["stem", "body"])
    names = moved(own)
    assert "head.0.running_mean" in names
    assert all(name.startswith("head") for name in names)
    assert not any(parameter.requires_grad for parameter in own.stepper.model.stem.parameters())


@pytest.mark.parametrize("recorder", [None, Again])
def test_a_layer_thaws_at_its_step(recorder):
    names = moved(trained(recorder=recorder and recorder(), max_steps=5))
    assert all(name.startswith("head") for name in names)
    names = moved(trained(recorder=recorder and recorder(), max_steps=6))
    assert {"stem.0.weight", "stem.1.running_mean"} <= names
    assert not any(name.startswith("body") for name in names)


@pytest.mark.parametrize("recorder", [None, Again])
@pytest.mark.parametrize("step", [4, 5, 6])
def test_a_run_that_resumes_around_the_thaw_learns_the_same_bits(step, recorder):
    saved = FakeCheckpoints()
    whole = trained(checkpoints=saved, save_every=1, ema=0.9)
    again = make(recorder=recorder and recorder(), ema=0.9)
    again.load_state_dict(copy.deepcopy(saved_at(saved, step)))
    again.fit()
    assert same(again.stepper.model.state_dict(), whole.stepper.model.state_dict())
    assert same(average(again), average(whole))


@pytest.mark.parametrize(
    ("patterns", "is_held"),
    [(["*.bias"], False), (["stem.1"], True), (["*.bias", "*.weight"], True)],
)
def test_a_batch_norm_is_held_if_all_of_it_is_frozen(patterns, is_held):
    model = Net()
    model.head[2].extra = nn.Parameter(torch.zeros(1))
    layers = frozen(model, patterns)
    model.train()
    layers.hold()
    assert model.stem[1].training is not is_held


@pytest.mark.parametrize(
    ("freeze", "words"),
    [
        (["stme"], "freeze = stme: matches no parameter of the model; the model has stem, body, h"),
        (["stem", "stem.0"], r"freeze = stem.0: matches stem.0.weight, which another entry has"),
        (["*"], "leaves nothing to train"),
    ],
)
def test_layers_that_cannot_be_frozen_are_refused(freeze, words):
    with pytest.raises(ConfigError, match=f"C312.*{words}"):
        freeze_layers(Net(), freeze)
