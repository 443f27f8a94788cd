from time import perf_counter

import pytest
import torch

from framework.measure.clock import CudaClock, HostClock, make_clock

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")


class Time:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("framework.measure.clock.perf_counter", lambda: self.now)

    def work(self, seconds):
        self.now += seconds


@pytest.fixture
def time(monkeypatch):
    return Time(monkeypatch)


def test_the_time_between_two_marks_belongs_to_the_second_one_s_name(time):
    clock = HostClock()
    for name, seconds in (("wait", 1.0), ("forward", 2.0), ("wait", 4.0)):
        time.work(seconds)
        clock.mark(name)
    assert clock.lap() == {"wait": 5.0, "forward": 2.0}


def test_marks_add_up_to_the_wall_time_between_the_first_and_the_last():
    clock = HostClock()
    clock.skip()
    first = clock._last
    for number in range(1000):
        clock.mark(f"span {number % 3}")
    assert sum(clock.lap().values()) == pytest.approx(clock._last - first, rel=1e-9)
    assert first < clock._last <= perf_counter()


def test_skipped_time_belongs_to_nobody(time):
    clock = HostClock()
    time.work(1.0)
    clock.mark("wait")
    time.work(50.0)
    clock.skip()
    time.work(2.0)
    clock.mark("wait")
    assert clock.lap() == {"wait": 3.0}


def test_a_lap_resets(time):
    clock = HostClock()
    time.work(1.0)
    clock.mark("wait")
    first = clock.lap()
    time.work(2.0)
    clock.mark("copy")
    assert (first, clock.lap(), clock.lap()) == ({"wait": 1.0}, {"copy": 2.0}, {})


def test_a_lap_between_two_marks_loses_no_time(time):
    clock = HostClock()
    time.work(1.0)
    clock.lap()
    time.work(2.0)
    clock.mark("report")
    assert clock.lap() == {"report": 3.0}


def test_the_clock_fits_the_device():
    assert isinstance(make_clock(torch.device("cpu")), HostClock)


@cuda
@pytest.mark.gpu
def test_on_cuda_marks_never_synchronize_and_laps_hand_in_device_time():
    device = torch.device("cuda")
    clock = make_clock(device)
    assert isinstance(clock, CudaClock)
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(10_000_000)
        clock.mark("forward")
        clock.lap()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    clock.mark("backward")
    assert clock.lap()["forward"] > 0.0
