"""A group of one rank, in this process; groups of two are tested with ddp, and by the contract's suite."""

import pytest
import torch
import torch.distributed
from torch import nn

from framework.errors import ConfigError
from framework.parallel import ranks
from framework.parallel.group import RankGroup


@pytest.fixture
def alone(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    ranks.meet.cache_clear()
    group = RankGroup("ddp", 10.0, False, torch.device("cpu"))
    yield group
    group.close()
    ranks.meet.cache_clear()


def test_a_rank_alone_talks_to_itself(alone):
    assert (alone.rank, alone.world_size, alone.device.type) == (0, 1, "cpu")
    assert alone.total(torch.tensor([1.5], dtype=torch.float64)).tolist() == [1.5]
    assert [found.tolist() for found in alone.gather(torch.arange(3))] == [[0, 1, 2]]
    assert any(alone.agree(False, True)[1] for _ in range(40))


def test_a_model_without_a_parameter_is_refused(alone):
    with pytest.raises(ConfigError, match=r"^error\[C108\]: model: "):
        alone.trainable(nn.Identity())


def test_closing_twice_is_closing_once(alone):
    alone.close()
    assert not torch.distributed.is_initialized()
    alone.close()


def test_a_process_that_is_no_rank_is_told_which_choice_wants_ranks(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"^error\[C109\]: parallel = fsdp: "):
        RankGroup("fsdp", 1.0, False, torch.device("cpu"))
