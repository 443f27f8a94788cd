"""What tests of projects of others share."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Let a plain loop add in the order of the run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
