"""A clock that measures one step in sixteen says the same as one that measures all."""

import pytest

from framework.measure.clock import SAMPLED_EVERY, CudaClock
from tests.simulated_cuda.patch import simulated
from tests.simulated_cuda.tensors import CUDA

# seconds of the device, which differ from step to step
PARTS = {"copy": 0.1, "forward": 0.5, "backward": 1.0, "optimizer": 0.2, "report": 0.01}
NUM_STEPS = 700


def totals(every, seed, lap=50):
    """Return the seconds by name over all laps, how often an event was made, and all steps."""
    sums = {}
    with simulated(seed) as device:
        clock = CudaClock(CUDA, every)
        for number in range(NUM_STEPS):
            clock.mark("wait")
            for name, seconds in PARTS.items():
                device.current.run(lambda: None, seconds * (1 + number % 7 / 20))
                clock.mark(name)
            if number % lap == lap - 1:
                add(sums, clock.lap())
        device.synchronize()
        add(sums, clock.lap())
        events = len(clock._free) + len(clock._marks)
    return sums, events


def add(sums, lap):
    for name, seconds in lap.items():
        sums[name] = sums.get(name, 0.0) + seconds


@pytest.mark.parametrize("seed", range(4))
def test_sampled_and_full_spans_agree_within_two_percent(seed):
    full, _ = totals(1, seed)
    sampled, _ = totals(SAMPLED_EVERY, seed)
    for name in PARTS:
        assert sampled[name] == pytest.approx(full[name], rel=0.02)


def test_with_a_lap_at_each_step_every_step_is_measured():
    full, _ = totals(1, 0, lap=1)
    sampled, _ = totals(SAMPLED_EVERY, 0, lap=1)
    for name in PARTS:
        assert sampled[name] == pytest.approx(full[name], rel=0.02)


def test_the_host_waits_of_all_steps_count():
    with simulated(0):
        clock = CudaClock(CUDA, SAMPLED_EVERY)
        for _ in range(40):
            clock.mark("wait")
            clock.mark("forward")
            clock.mark("report")
        span = clock.spans()["wait"]
    assert span.num_steps == 40


def test_time_that_is_skipped_does_not_count():
    with simulated(0) as device:
        clock = CudaClock(CUDA, SAMPLED_EVERY)
        for _ in range(32):
            device.current.run(lambda: None, 5.0)
            clock.skip()
            clock.mark("wait")
            device.current.run(lambda: None, 1.0)
            clock.mark("forward")
            clock.mark("report")
        device.synchronize()
        lap = clock.lap()
    assert lap["forward"] == pytest.approx(32.0, rel=0.02)
    assert sum(lap.values()) < 40.0
