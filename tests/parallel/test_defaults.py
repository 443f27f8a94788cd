import torch
from torch import nn

from framework.parallel.defaults import UnshardedState


def test_states_stay_what_they_are():
    parts = UnshardedState()
    parts.device = torch.device("cpu")
    model, state = nn.Linear(1, 1), {"model": {}}
    assert parts.home == torch.device("cpu")
    assert parts.gather_state(state) is state
    assert parts.shard_state(state, model, torch.optim.SGD(model.parameters())) is state
