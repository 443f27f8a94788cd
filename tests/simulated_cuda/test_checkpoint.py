"""What is saved of a device can be read on a machine without it."""

from collections import OrderedDict
from typing import NamedTuple

import torch

from framework.train.checkpoint import read_state, save_state
from tests.simulated_cuda.patch import simulated
from tests.simulated_cuda.tensors import CUDA


def test_saved_tensors_are_on_the_host(tmp_path):
    with simulated(3):
        weight = torch.arange(6.0).to(CUDA, non_blocking=True).mul(2)
        weights = OrderedDict(first=weight, tied=weight, rest=[weight[1:3], 7])
        weights._metadata = {"": {"version": 2}}
        save_state(tmp_path / "state.pt", {"model": weights, "count": 3}, 1, 1)
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert loaded["model"]["first"].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert loaded["model"]["first"].data_ptr() == loaded["model"]["tied"].data_ptr()
    assert loaded["model"]["rest"][0].tolist() == [2.0, 4.0]
    assert loaded["model"]._metadata == {"": {"version": 2}}
    assert read_state(tmp_path / "state.pt")["count"] == 3


def test_a_named_tuple_of_a_module_is_saved_and_read(tmp_path):
    class Extra(NamedTuple):
        mean: torch.Tensor
        count: int

    save_state(tmp_path / "state.pt", {"extra": Extra(torch.ones(2), 3)}, 1, 1)
    mean, count = read_state(tmp_path / "state.pt")["extra"]
    assert (mean.tolist(), count) == ([1.0, 1.0], 3)
