"""Clocks of hosts, compared among ranks that are threads with clocks of their own."""

import threading
import time

import numpy as np
import pytest
import torch

from framework.train import rank_watch
from framework.train.lateness import ClockOffsets
from framework.train.rank_watch import DRIFT, HostClocks

AHEAD_S = (0.0, 5.0, -3.0)


class Threads:
    """Ranks that are threads."""

    def __init__(self, count):
        self.parts, self.barrier = [None] * count, threading.Barrier(count)

    def of(self, rank):
        return Member(self, rank)


class Member:
    def __init__(self, threads, rank):
        self.threads, self.rank = threads, rank

    def gather(self, values):
        self.threads.parts[self.rank] = values
        self.threads.barrier.wait()
        parts = list(self.threads.parts)
        self.threads.barrier.wait()
        return parts

    def total(self, values):
        return sum(self.gather(values))


@pytest.fixture
def own_clocks(monkeypatch):
    """Let each thread see the clock of its rank."""

    def now():
        return time.perf_counter() + AHEAD_S[int(threading.current_thread().name)]

    monkeypatch.setattr(rank_watch, "perf_counter", now)


def compared(times):
    ranks = Threads(len(AHEAD_S))
    clocks = [HostClocks() for _ in AHEAD_S]

    def compare(rank):
        for _ in range(times):
            clocks[rank].compare(ranks.of(rank))

    threads = [threading.Thread(target=compare, args=(rank,), name=str(rank)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clocks


@pytest.mark.parametrize("times", [1, 3])
def test_clocks_that_differ_by_seconds_are_distinguished(own_clocks, times):
    clocks = compared(times)[0]
    now_s = np.array([[time.perf_counter() + ahead] for ahead in AHEAD_S])
    offsets_s, uncertainty_s = clocks.at(now_s)
    assert (np.abs(offsets_s[:, 0] - AHEAD_S) <= uncertainty_s[:, 0] + 1e-9).all()
    assert (uncertainty_s < 1.0).all()
    assert (offsets_s[0], uncertainty_s[0]) == (0.0, 0.0)


def test_all_ranks_find_the_same(own_clocks):
    at = np.zeros((3, 1))
    first, *others = [clocks.at(at)[0].tolist() for clocks in compared(1)]
    assert others == [first, first]


def test_a_clock_drifts_evenly_between_two_comparisons():
    clocks = HostClocks()
    clocks._times_s = [0.0, 100.0]
    clocks._offsets = [
        ClockOffsets(np.array([0.0, drifted]), np.array([0.0, 1e-3])) for drifted in (0.0, 1e-2)
    ]
    offsets_s, uncertainty_s = clocks.at(np.array([[50.0], [50.01]]))
    assert offsets_s[1, 0] == pytest.approx(5e-3, rel=1e-3)
    assert uncertainty_s[1, 0] == pytest.approx(1e-3)
    _, later_s = clocks.at(np.array([[200.0], [200.01]]))
    assert later_s[:, 0].tolist() == pytest.approx([0.0, 1e-3 + 100 * DRIFT])


def test_clocks_are_compared_at_once_and_then_now_and_then(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(rank_watch, "perf_counter", lambda: now[0])
    clocks = HostClocks()
    assert clocks.are_due()
    assert not clocks.are_known
    ranks = Threads(1)
    clocks.compare(ranks.of(0))
    assert clocks.are_known
    assert not clocks.are_due()
    now[0] += rank_watch.COMPARED_S + 1
    assert clocks.are_due()
    assert torch.is_tensor(ranks.parts[0])
