"""Frozen layers: what freezes, when it thaws, and that a resumed run learns the same bits."""

import copy

import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.measure.clock import NoClock
from framework.train.freeze import Freeze, freeze_layers, thaws_of
from tests.fakes import FakeCheckpoints, make_data, make_trainer
from tests.train.test_cuda_graph import Again

FREEZE = {"stem": 5, "body": None}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False), nn.ReLU())
        self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def net():
    torch.manual_seed(0)
    return Net()


def frozen(model, freeze=None, rewrap=lambda wrapped: wrapped):
    freeze = FREEZE if freeze is None else freeze
    return Freeze(model, freeze_layers(model, freeze), thaws_of(freeze), rewrap)


def trainer(freeze=None, recorder=None, epochs=3, **parts):
    """Return a Trainer over epochs of four whole batches and a short one.

    Its optimizer has momentum and weight decay.
    """
    model = net()
    layers = frozen(model, freeze)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125, weight_decay=0.5, fused=True)
    return make_trainer(
        make_data(18, torch.float32),
        4,
        model=model,
        optimizer=optimizer,
        freeze=layers,
        recorder=recorder,
        epochs=epochs,
        clock=NoClock(),
        **parts,
    )


def weights(own):
    state = own.state_dict() if isinstance(own, nn.Module) else own.stepper.model.state_dict()
    return {name: value.clone() for name, value in state.items()}


def changed(before, after):
    return {name for name, value in after.items() if not torch.equal(value, before[name])}


def test_a_frozen_layer_keeps_its_bits_through_decay_and_statistics():
    own = trainer(["stem", "body"])
    before = weights(own)
    own.fit()
    moved = changed(before, weights(own))
    assert moved
    assert all(name.startswith("head") for name in moved)
    assert not any(parameter.requires_grad for parameter in own.stepper.model.stem.parameters())


def test_the_head_s_batch_norm_learns_its_statistics():
    own = trainer()
    before = weights(own)
    own.fit()
    assert "head.0.running_mean" in changed(before, weights(own))
    assert not own.stepper.model.body[1].training


@pytest.mark.parametrize("recorder", [None, Again])
def test_a_layer_thaws_at_its_step(recorder):
    own = trainer(recorder=recorder and recorder(), max_steps=5)
    before = weights(own)
    own.fit()
    assert all(name.startswith("head") for name in changed(before, weights(own)))
    own = trainer(recorder=recorder and recorder(), max_steps=6)
    own.fit()
    moved = changed(before, weights(own))
    assert {"stem.0.weight", "stem.1.running_mean"} <= moved
    assert not any(name.startswith("body") for name in moved)


def test_steps_are_captured_anew_when_a_layer_thaws():
    recorder = Again()
    captured = trainer({"stem": 6}, recorder)
    plain = trainer({"stem": 6})
    for own in (captured, plain):
        torch.manual_seed(1)
        own.fit()
    assert recorder.captures == 2
    assert not changed(weights(plain), weights(captured))


@pytest.mark.parametrize("recorder", [None, Again])
@pytest.mark.parametrize("step", [3, 4, 5, 6, 8])
def test_a_run_that_resumes_around_the_thaw_learns_the_same_bits(step, recorder):
    saved = FakeCheckpoints()
    whole = trainer(checkpoints=saved, save_every=1, ema=0.9)
    torch.manual_seed(1)
    whole.fit()
    state = next(state for state, _, _ in saved.saved if state["progress"]["step"] == step)
    again = trainer(recorder=recorder and recorder(), ema=0.9)
    again.load_state_dict(copy.deepcopy(state))
    again.fit()
    assert not changed(weights(whole), weights(again))
    averages = [own.stepper.weights() for own in (whole, again)]
    assert all(torch.equal(averages[0][name], value) for name, value in averages[1].items())


def test_the_wrap_is_made_anew_only_if_something_thaws():
    wraps = []
    model = net()

    def rewrap(wrapped):
        wraps.append(wrapped)
        return nn.Sequential(model)

    layers = frozen(model, rewrap=rewrap)
    assert layers.move_to(4, model) is model
    assert [layers.is_due(step) for step in (4, 5, 6)] == [False, True, False]
    assert layers.move_to(5, model) is not model
    assert len(wraps) == 1
    assert layers.is_frozen("body.0.weight")
    assert not layers.is_frozen("stem.0.weight")


def test_what_the_model_itself_froze_stays_frozen():
    model = net()
    model.stem[0].weight.requires_grad_(False)
    layers = frozen(model)
    layers.move_to(5, model)
    assert not model.stem[0].weight.requires_grad
    assert model.stem[0].bias.requires_grad


@pytest.mark.parametrize(
    ("pattern", "is_held"),
    [("*.bias", False), ("stem.1", True), (["*.bias", "*.weight"], True)],
)
def test_a_batch_norm_is_held_if_all_of_it_is_frozen(pattern, is_held):
    patterns = [pattern] if isinstance(pattern, str) else pattern
    model = net()
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
def test_what_cannot_be_frozen_is_refused(freeze, words):
    with pytest.raises(ConfigError, match=f"C312.*{words}"):
        freeze_layers(net(), freeze)


def test_a_list_never_thaws():
    assert thaws_of(["stem"]) == {"stem": None}
    assert thaws_of({"stem": 3}) == {"stem": 3}
    assert thaws_of(None) == {}
