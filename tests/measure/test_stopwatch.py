import pytest

from framework.measure import stopwatch as stages
from framework.measure.stopwatch import Stages, Stopwatch
from tests.data.pace import Pace


@pytest.fixture
def pace(monkeypatch):
    pace = Pace()
    monkeypatch.setattr(stages, "perf_counter", pace)
    return pace


def test_the_time_between_two_marks_belongs_to_the_second_one_s_stage(pace):
    watch = Stopwatch()
    for stage, seconds in (("read", 1.0), ("decode", 2.0), ("transform", 4.0), ("decode", 8.0)):
        pace.now += seconds
        watch.mark(stage)
    assert watch.stages_s == {"read": 1.0, "decode": 10.0, "transform": 4.0}


def test_what_was_before_the_watch_is_not_counted(pace):
    pace.now += 50.0
    watch = Stopwatch()
    pace.now += 1.0
    watch.mark("read")
    assert watch.stages_s == {"read": 1.0}


def test_slices_add_up_until_they_are_taken():
    sums = Stages()
    sums.add_slices([{"read": 1.0}, {"read": 2.0, "decode": 4.0}])
    sums.sums_s["collate"] += 8.0
    assert sums.take() == {"read": 3.0, "decode": 4.0, "collate": 8.0}
    sums.add_slices([{"read": 16.0}])
    assert (sums.take(), sums.take()) == ({"read": 16.0}, {})
