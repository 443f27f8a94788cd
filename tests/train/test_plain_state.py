"""What a saved state may hold, and how large the state of an optimizer may be."""

import pytest
import torch
from torch import nn

from framework.train.plain_state import check_moments, foreign_weight, is_plain


def stepped(model):
    """Return an optimizer that has taken a step, and its state."""
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer, optimizer.state_dict()


def test_the_state_of_an_optimizer_fits_itself():
    optimizer, state = stepped(nn.Linear(3, 50))
    state["state"][0]["preconditioner"] = torch.zeros(50, 50)
    check_moments(state, optimizer)


TOO_LARGE = {
    "one": ({"exp_avg": torch.zeros(1).expand(3, 5, 5)}, r"75 numbers for .* shape \(3, 5\)"),
    "inside": ({"of": [{"all": torch.zeros(26)}]}, "26 numbers"),
    "many": ({str(number): torch.zeros(5, 5) for number in range(20)}, "20 tensors"),
}


@pytest.mark.parametrize(("moments", "what"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_moments_larger_than_their_parameter_are_refused(moments, what):
    optimizer, state = stepped(nn.Linear(5, 3))
    state["state"][0] = moments
    with pytest.raises(ValueError, match=what):
        check_moments(state, optimizer)


STRANGE = {
    "sparse": torch.ones(2).to_sparse(),
    "meta": torch.empty(2, device="meta"),
    "a class of its own": torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("value", STRANGE.values(), ids=STRANGE)
def test_a_tensor_that_could_not_be_checked_is_not_plain(value):
    assert not is_plain([value])
    assert "the model's weight is " in foreign_weight({"weight": value})
