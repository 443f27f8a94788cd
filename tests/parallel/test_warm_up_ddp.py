"""One pass before the first step: it changes nothing, and three ranks that go on learn the same
bits as three that never stopped.
"""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.objective.classify import Classify
from framework.parallel.ddp import warm_up_ddp
from framework.system.rng import generator_state, set_generator_state
from tests.cli.command import losses, paceline


class Plain:
    def autocast(self):
        return nullcontext()


def test_it_leaves_weights_statistics_gradients_and_generators_as_they_were():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before, cpu = (
        {name: value.clone() for name, value in model.state_dict().items()},
        torch.device("cpu"),
    )
    generators = generator_state(cpu)
    batch = {
        "index": torch.arange(6),
        "image": torch.randn(6, 2, 2, generator=torch.Generator().manual_seed(1)),
    }
    warm_up_ddp(
        model,
        Classify("image", "label", 0.0),
        Plain(),
        {**batch, "label": torch.arange(6) % 3},
        cpu,
    )
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [item.grad for item in model.parameters()] == [None] * 4
    drawn = torch.rand(5)
    set_generator_state(generators, cpu)
    assert torch.equal(torch.rand(5), drawn)


@pytest.mark.slow
def test_three_ranks_that_go_on_learn_the_same_bits(tmp_path):
    """From three on a sum's last bit depends on its order, and so on how DDP has arranged its
    buckets: here several, which it arranges anew.
    """
    words = [
        *("train", "parallel=ddp", "parallel.num_processes=3", "parallel.bucket_mb=0.02"),
        *("batch_size=96", "epochs=2"),
    ]
    words += ["schedule=constant", "report_every=1", "sink=[jsonl]", "workers.num=0"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert paceline(*words, "max_steps=24", f"hydra.run.dir={whole}").code == 0
    assert paceline(*words, "max_steps=9", f"hydra.run.dir={parts}").code == 0
    done = paceline("train", f"resume={parts}", "max_steps=24")
    assert done.code == 0, done.err
    assert len(losses(Path(whole))) == 24
    assert losses(Path(parts)) == losses(Path(whole))
