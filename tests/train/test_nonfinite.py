import math

import pytest
import torch
from torch import nn

from framework.errors import DistributedError, NumericError
from framework.parallel.none import NoParallel
from framework.train.metrics import PassPlace, Progress
from framework.train.nonfinite import (
    all_finite,
    are_finite,
    finite_on_all_ranks,
    gone_wrong,
    infinite_buffers,
    too_many,
)
from tests.fakes import CPU, Reads


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.running_mean"])
def test_one_weight_or_statistic_that_is_none_is_found(bad, name):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert all_finite(model, {})
    model.state_dict()[name].view(-1)[-1] = bad
    assert not all_finite(model, {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_of_any_precision(dtype):
    assert are_finite([torch.full((3,), 100.0, dtype=dtype), torch.zeros(0, dtype=dtype)])
    assert not are_finite([torch.ones(3, dtype=dtype), torch.full((3,), math.inf, dtype=dtype)])


def test_of_nothing_all_is_finite():
    assert are_finite([])


def test_the_device_is_read_once_for_all():
    with Reads() as reads:
        assert are_finite([torch.ones(3)] * 10)
    assert reads.count == 1


class Ranks:
    """Rank ``rank`` of ranks that met their first bad loss at ``steps``."""

    def __init__(self, rank, *steps):
        self.rank, self.steps = rank, steps

    def gather(self, values):
        return [torch.tensor([step]) for step in self.steps]


@pytest.mark.parametrize(
    ("steps", "speaker"),
    [((math.inf, 7.0), 1), ((7.0, 7.0), 0), ((9.0, 7.0, 8.0), 1), ((math.inf, math.inf), 0)],
)
def test_one_rank_says_it_and_the_others_that_it_does(steps, speaker):
    said = [
        gone_wrong("the loss is nan", 10, None, Ranks(rank, *steps)) for rank in range(len(steps))
    ]
    assert [type(error) for error in said] == [
        NumericError if rank == speaker else DistributedError for rank in range(len(steps))
    ]


def test_the_step_and_the_records_are_named():
    bad = PassPlace(7, torch.tensor([3, 1]))
    said = str(gone_wrong("the loss is nan", 10, bad, NoParallel(device=CPU)))
    assert said.startswith("error[N101]: step 7, records 3, 1: the loss is nan; ")
    assert str(gone_wrong("odd", 10, None, NoParallel(device=CPU))).startswith(
        "error[N101]: step 10: odd; "
    )


def test_how_many_steps_changed_nothing_is_said():
    assert "error[N102]: step 8: the gradients of 3 steps" in str(
        too_many(Progress(step=7, missed=3))
    )


def test_what_is_infinite_by_design_is_left_out():
    model = nn.BatchNorm1d(2)
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    but = infinite_buffers(model)
    assert but == {"mask": False}
    assert not all_finite(model, {})
    assert all_finite(model, but)
    model.mask.fill_(math.inf)
    assert all_finite(model, but)
    model.mask[0] = math.nan
    assert not all_finite(model, but)
    assert infinite_buffers(model) == {"mask": True}
    assert all_finite(model, {"mask": True})  # it was not set from the start
    model.mask[0] = 0.0
    model.running_mean.fill_(math.nan)
    assert not all_finite(model, but)


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_a_bad_buffer_on_another_rank_counts_here_too(others):
    class Ranks(NoParallel):
        def total(self, sums):
            return sums + others

    model = nn.BatchNorm1d(2)
    assert finite_on_all_ranks(model, {}, Ranks(device=CPU)) == (not others)
    model.running_var[0] = math.inf
    assert not finite_on_all_ranks(model, {}, Ranks(device=CPU))
