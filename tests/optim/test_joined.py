"""Several optimizers joined to one, and Muon, which is two."""

import copy

import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.optim.joined import Joined
from framework.optim.muon import Muon

OPTIONS = {"lr": 0.01, "momentum": 0.9, "betas": (0.9, 0.95), "weight_decay": 0.1}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def apart(model):
    """Return two optimizers over the model."""
    first = torch.optim.AdamW(model[0].parameters(), lr=0.01)
    return first, torch.optim.Adagrad([*model[1].parameters(), *model[2].parameters()], lr=0.1)


def learn(model, *optimizers, steps=3):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        model.zero_grad()
        model(x).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def same(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.equal(own, theirs) for own, theirs in pairs)


def test_it_steps_as_its_parts_do_and_continues_from_its_state():
    model, other, third = net(), net(), net()
    joined = Joined(dict(zip("ab", apart(model), strict=True)))
    learn(model, joined)
    learn(other, *apart(other))
    assert same(model, other)
    third.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed = Joined(dict(zip("ab", apart(third), strict=True)))
    resumed.load_state_dict(copy.deepcopy(joined.state_dict()))
    for optimizer in (joined, resumed):
        optimizer.param_groups[1]["lr"] = 0.5  # as a schedule does
    learn(model, joined)
    learn(third, resumed)
    assert same(model, third)
    assert not same(model, other)
    assert resumed.parts["b"].param_groups[0]["lr"] == 0.5


def test_muon_has_torchs_muon_for_matrices_and_adamw_for_the_rest():
    model, other = net(), net()
    learn(model, Muon(model.parameters(), **OPTIONS))
    matrices = [weight for weight in other.parameters() if weight.dim() == 2]
    rest = [weight for weight in other.parameters() if weight.dim() != 2]
    muon = torch.optim.Muon(
        matrices, lr=0.01, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    learn(other, muon, torch.optim.AdamW(rest, 0.01, (0.9, 0.95), weight_decay=0.1))
    assert same(model, other)


def test_groups_give_both_kinds_their_options():
    model = net()
    groups = [
        {"params": model[0].parameters(), "name": "stem", "lr": 0.5},
        {"params": [*model[1].parameters(), *model[2].parameters()], "weight_decay": 0.0},
    ]
    groups_made = [
        (group["name"], group["lr"], group["weight_decay"])
        for group in Muon(groups, **OPTIONS).param_groups
    ]
    assert groups_made == [
        *(("stem, matrices", 0.5, 0.1), ("matrices", 0.01, 0.0), ("stem, no matrices", 0.5, 0.1)),
        ("no matrices", 0.01, 0.0),
    ]


def test_a_model_without_matrices_is_refused():
    with pytest.raises(ConfigError, match=r"C364.*no parameter has two dimensions"):
        Muon(nn.Conv2d(1, 1, 3).parameters(), **OPTIONS)
