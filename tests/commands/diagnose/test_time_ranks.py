"""Measuring ranks, without ranks; ``test_diagnose_ranks`` does it with real ones."""

import pytest
import torch

from framework.commands.diagnose import time_ranks
from framework.commands.diagnose.time_ranks import (
    FIRST_STEPS,
    _Sized,
    _Timer,
    _work,
)
from tests.fakes import FakeLoader, make_data


class Gathering:
    """Ranks with these values, of which this is the first."""

    def __init__(self, *others):
        self.others = others

    def gather(self, values):
        return [values, *(torch.tensor([0.0, *own], dtype=torch.float64) for own in self.others)]


def test_the_first_steps_do_not_count(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time_ranks.time, "perf_counter", lambda: now[0])
    timer, started = _Timer(1.0), []
    timer.at_start.append(lambda: started.append(now[0]))
    num_steps = 0
    ends = False
    while not ends:
        now[0] += 10.0 if num_steps < FIRST_STEPS else 0.01
        num_steps += 1
        ends = timer()
    assert started == [100.0 + 10.0 * FIRST_STEPS]
    assert num_steps == FIRST_STEPS + 101
    assert timer.step_s == pytest.approx(0.01)


def test_the_work_of_ranks_is_compared_step_by_step_and_over_all():
    assert _work([1.0, 3.0], Gathering([3.0, 1.0])) == (1.5, 1.0)
    assert _work([3.0, 3.0], Gathering([1.0, 1.0])) == (1.5, 1.5)
    assert _work([3.0, 3.0, 9.0], Gathering([3.0, 3.0])) == (1.0, 1.0)
    assert _work([], Gathering([1.0])) == (1.0, 1.0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_size_of_a_step_is_that_of_all_its_passes(accumulate):
    """A record has four numbers and a label."""
    loader = _Sized(FakeLoader(make_data(8), 4, accumulate=accumulate))
    list(loader.epoch(0))
    assert loader.sizes == [4 * 5.0] * 2
