"""How long a run has trained: validating and saving do not count."""

from types import SimpleNamespace

import pytest

from framework.train import pace
from framework.train.pace import TrainPace


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that a test moves."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_a_lap_gives_the_rate_and_adds_to_the_totals(clock):
    timer = TrainPace()
    timer.start()
    clock.now += 2
    assert timer.lap(10) == 5.0
    clock.now += 3
    assert timer.lap(3) == 1.0
    assert (timer.train_s, timer.num_records) == (5.0, 13)


def test_a_pause_does_not_count(clock):
    timer = TrainPace()
    timer.start()
    clock.now += 2
    timer.pause()
    clock.now += 50
    assert timer.total_s == 2.0
    timer.go_on()
    clock.now += 1
    assert timer.total_s == 3.0
    assert timer.lap(6) == 2.0


def test_the_time_since_the_last_report_and_before_a_resume_counts(clock):
    timer = TrainPace()
    timer.before_s = 7.0
    clock.now += 9  # building the run
    timer.start()
    clock.now += 2
    timer.lap(1)
    clock.now += 1
    assert timer.total_s == 10.0
