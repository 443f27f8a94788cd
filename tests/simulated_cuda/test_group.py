"""What ranks exchange of the host does not wait for the device."""

import torch

from tests.parallel.test_group import alone  # noqa: F401  # a fixture
from tests.simulated_cuda.patch import simulated
from tests.simulated_cuda.tensors import CUDA


def test_flags_do_not_wait_for_the_steps_that_are_queued(alone):  # noqa: F811
    alone.device = CUDA
    with simulated(0) as device:
        queued = torch.zeros(4).to(CUDA, non_blocking=True)
        device.num_synchronized = 0
        answers = [alone.agree(False, True)[1] for _ in range(40)]
        del queued
    assert any(answers)
    assert device.num_synchronized == 0
