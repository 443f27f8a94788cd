import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from framework.precision.clip import clip


def make(*gradients):
    """Return an optimizer of two groups, and its parameters with these gradients."""
    parameters = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(len(gradient)))
        parameter.grad = torch.tensor(gradient)
        parameters.append(parameter)
    groups = [{"params": parameters[:1]}, {"params": parameters[1:]}]
    return torch.optim.SGD([group for group in groups if group["params"]], lr=1.0), parameters


def test_the_norm_is_of_all_groups_together():
    optimizer, parameters = make([3.0, 0.0], [0.0, 4.0])
    clip(optimizer, 2.5)
    assert [parameter.grad.tolist() for parameter in parameters] == [
        pytest.approx([1.5, 0.0]),
        pytest.approx([0.0, 2.0]),
    ]


def test_a_short_gradient_stays():
    optimizer, parameters = make([0.3], [0.4])
    clip(optimizer, 1.0)
    assert [parameter.grad.item() for parameter in parameters] == [
        pytest.approx(0.3),
        pytest.approx(0.4),
    ]


def test_a_parameter_without_a_gradient_is_passed_over():
    optimizer, parameters = make([3.0], [4.0])
    parameters[0].grad = None
    clip(optimizer, 1.0)
    assert parameters[0].grad is None
    assert parameters[1].grad.item() == pytest.approx(1.0, rel=1e-5)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8), st.floats(1e-3, 1e3))
def test_no_gradient_is_longer_than_the_norm_afterwards(gradient, clip_norm):
    optimizer, parameters = make(gradient)
    clip(optimizer, clip_norm)
    assert float(parameters[0].grad.norm()) <= clip_norm * 1.001
