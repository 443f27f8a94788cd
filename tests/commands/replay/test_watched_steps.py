"""What is noted of a step. ``test_step_again`` compares the bits."""

import pytest
import torch
from torch import nn

from framework.commands.replay.watched_steps import gradient_norms, weights_digest


def test_a_layer_is_a_module_with_parameters_of_its_own():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 1)))
    model(torch.ones(1, 2)).sum().backward()
    norms = gradient_norms(model, scale=2.0)
    assert list(norms) == ["0", "2.0"]
    own = [part.grad.flatten() for part in model[0].parameters()]
    assert norms["0"] == pytest.approx(float(torch.cat(own).norm()) / 2)


def test_the_digest_of_weights_is_that_of_their_bits_and_names():
    state = {"a": torch.zeros(3), "b": torch.tensor(4)}
    assert weights_digest(state) == weights_digest(dict(reversed(state.items())))
    assert weights_digest(state) != weights_digest({**state, "a": -torch.zeros(3)})
    assert weights_digest(state) != weights_digest({"c": state["a"], "b": state["b"]})
