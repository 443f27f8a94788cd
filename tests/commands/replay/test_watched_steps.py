"""What is noted of a step. ``test_step_again`` compares the bits."""

import pytest
import torch
from torch import nn

from framework.commands.replay.watched_steps import gradient_norms


def test_a_layer_is_a_module_with_parameters_of_its_own():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 1)))
    model(torch.ones(1, 2)).sum().backward()
    norms = gradient_norms(model, scale=2.0)
    assert list(norms) == ["0", "2.0"]
    own = [part.grad.flatten() for part in model[0].parameters()]
    assert norms["0"] == pytest.approx(float(torch.cat(own).norm()) / 2)
