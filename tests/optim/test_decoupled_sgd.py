from math import exp

import pytest
import torch
from torch import nn

from framework.optim.decoupled_sgd import DecoupledSGD


def weight(value=1.0):
    return nn.Parameter(torch.tensor([value], dtype=torch.float64))


def after(optimizer, parameter, steps, gradient):
    for _ in range(steps):
        parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
    return parameter.item()


def test_published_options_are_torchs():
    """At 1024 records a step: torch's rate 1.5 for the mean loss, and its decay over this rate."""
    own, bias = weight(), weight()
    groups = [{"params": [own]}, {"params": [bias], "lr": 64 * 11.5}]
    optimizer = DecoupledSGD(groups, lr=11.5, momentum=0.85, weight_decay=0.0153)
    first, second = optimizer.param_groups
    assert first["lr"] == pytest.approx(1.5)
    assert first["lr"] * first["weight_decay"] == pytest.approx(0.0153 / (1 + 1 / 0.15))
    assert second["lr"] == pytest.approx(96)
    assert second["lr"] * second["weight_decay"] == pytest.approx(0.0153 / (1 + 1 / 0.15))
    assert all(group["nesterov"] and group["momentum"] == 0.85 for group in (first, second))


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_a_long_way_hardly_depends_on_the_momentum(momentum):
    """The published factor counts a step more than Nesterov momentum takes: 10 of 11 remain."""
    parameter = weight(0.0)
    optimizer = DecoupledSGD([parameter], lr=0.01, momentum=momentum, weight_decay=0.0)
    steps = 1 / (1 - momentum)
    expected = -1000 * 0.01 * steps / (1 + steps)
    assert after(optimizer, parameter, 1000, 1.0) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("lr", [0.001, 1.0])
def test_decay_does_not_depend_on_the_rate(lr):
    parameter = weight()
    optimizer = DecoupledSGD([parameter], lr=lr, momentum=0.5, weight_decay=0.01)
    assert after(optimizer, parameter, 100, 0.0) == pytest.approx(exp(-2 / 3), rel=2e-3)


def test_a_group_with_the_rate_zero_stays():
    parameter = weight()
    groups = [{"params": [parameter], "lr": 0.0}]
    optimizer = DecoupledSGD(groups, lr=1.0, momentum=0.5, weight_decay=0.01)
    assert after(optimizer, parameter, 3, 1.0) == 1.0


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_it_needs_a_momentum(momentum):
    with pytest.raises(ValueError, match=f"momentum = {momentum} must be above 0 and below 1"):
        DecoupledSGD([weight()], lr=1.0, momentum=momentum, weight_decay=0.0)
