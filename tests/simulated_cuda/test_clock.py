"""A clock that measures one step in sixteen says the same as one that measures all."""

import pytest
import torch

from framework.contracts.span import Span
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


def train(clock, device, steps, seconds, report_every=10, pause_s=0.0):
    """Mark the steps of a training and return the spans of all laps.

    ``seconds`` gives the time of a step by its number.
    """
    laps = []
    for number in range(steps):
        clock.mark("wait")
        device.current.run(lambda: None, seconds(number))
        clock.mark("forward")
        if number % report_every == report_every - 1:
            device.synchronize()  # a report reads the loss
            laps.append(clock.spans())
            torch.cuda.Stream(CUDA).run(lambda: None, pause_s)
            device.synchronize()
        clock.mark("report")
    device.synchronize()
    return [*laps, clock.spans()]


@pytest.mark.parametrize("report_every", [1, 2, 10, 50])
def test_a_slow_first_step_stands_for_itself_alone(report_every):
    with simulated(0) as device:
        clock = CudaClock(CUDA, SAMPLED_EVERY)
        laps = train(clock, device, 100, lambda number: 1.0 if number else 100.0, report_every)
    assert sum(lap.get("forward", Span()).total_s for lap in laps) == pytest.approx(199, rel=0.02)
    assert sum(lap.get("forward", Span()).num_steps for lap in laps) == pytest.approx(100, abs=1)


def test_the_device_waits_for_reports_only_as_often_as_there_are_some():
    with simulated(0) as device:
        full = train(CudaClock(CUDA, 1), device, 200, lambda _: 1.0, pause_s=5.0)
    with simulated(0) as device:
        sampled = train(CudaClock(CUDA, SAMPLED_EVERY), device, 200, lambda _: 1.0, pause_s=5.0)
    for laps in (full, sampled):
        assert sum(sum(span.total_s for span in lap.values()) for lap in laps) == pytest.approx(
            300, rel=0.02
        )


def test_quantiles_of_sampled_spans_are_those_of_the_steps():
    with simulated(0) as device:
        clock = CudaClock(CUDA, SAMPLED_EVERY)
        laps = train(clock, device, 3000, lambda number: 2.0 if number < 1600 else 4.0, 3000)
    whole = laps[0]["forward"] + laps[1]["forward"]
    assert whole.p50_s == pytest.approx(2.0, rel=0.02)
    assert whole.p90_s == pytest.approx(4.0, rel=0.02)


def test_a_loader_that_is_measured_alone_marks_no_end():
    with simulated(0) as device:
        clock = CudaClock(CUDA, SAMPLED_EVERY)
        for _ in range(600):
            clock.mark("wait")
            device.current.run(lambda: None, 1.0)
            clock.mark("copy")
        device.synchronize()
        assert clock.lap()["copy"] == pytest.approx(600, rel=0.01)
        assert len(clock._marks) + len(clock._free) < 600


def test_an_epochs_first_step_stands_for_itself_alone():
    with simulated(0) as device:
        clock = CudaClock(CUDA, SAMPLED_EVERY)
        laps = []
        for _ in range(5):
            clock.skip()
            laps += train(clock, device, 20, lambda number: 1.0 if number else 30.0, 20)
    assert sum(lap.get("forward", Span()).total_s for lap in laps) == pytest.approx(
        5 * 49, rel=0.02
    )
