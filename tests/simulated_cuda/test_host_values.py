"""What leaves the device: saved tensors, and flags that ranks exchange."""

from collections import OrderedDict
from typing import NamedTuple

import torch

from framework.parallel import start_ranks as ranks
from framework.parallel.group import RankGroup
from framework.train.checkpoint import read_state, save_state
from tests.simulated_cuda import patch, tensors


class Extra(NamedTuple):
    """A value that a module may keep in its state."""

    mean: torch.Tensor
    count: int


def test_saved_tensors_are_on_the_host_and_tied_ones_stay_tied(tmp_path):
    path = tmp_path / "state.pt"
    with patch.simulated(3):
        weight = torch.arange(6.0).to(tensors.CUDA, non_blocking=True).mul(2)
        weights = OrderedDict(first=weight, tied=weight, rest=[weight[1:3], Extra(weight[0], 7)])
        weights._metadata = {"": {"version": 2}}
        save_state(path, {"model": weights, "count": 3}, 1, 1)
    state = read_state(path)
    loaded = state["model"]
    assert loaded["first"].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert loaded["first"].data_ptr() == loaded["tied"].data_ptr()
    assert loaded["rest"][0].tolist() == [2.0, 4.0]
    assert (loaded["rest"][1][0].item(), loaded["rest"][1][1]) == (0.0, 7)
    assert (loaded._metadata, state["count"]) == ({"": {"version": 2}}, 3)


def test_flags_of_ranks_do_not_wait_for_the_steps_that_are_queued(monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    ranks.meet.cache_clear()
    group = RankGroup("ddp", 10.0, False, torch.device("cpu"))
    group.device = tensors.CUDA
    with patch.simulated(0) as device:
        queued = torch.zeros(4).to(tensors.CUDA, non_blocking=True)
        device.num_synchronized = 0
        answers = [group.agree(False, True)[1] for _ in range(40)]
        del queued
    group.close()
    ranks.meet.cache_clear()
    assert any(answers)
    assert device.num_synchronized == 0
