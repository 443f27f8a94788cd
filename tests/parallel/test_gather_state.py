import torch
from torch import nn

from framework.parallel.gather_state import Whole


def test_states_stay_what_they_are():
    parts = Whole()
    parts.device = torch.device("cpu")
    model, state = nn.Linear(1, 1), {"model": {}}
    assert parts.home == torch.device("cpu")
    assert parts.whole(state) is state
    assert parts.parted(state, model, torch.optim.SGD(model.parameters())) is state
