"""A clock that measures one step in sixteen says the same as one that measures all."""

import pytest
import torch

from framework.contracts.span import Span
from framework.measure.clock import SAMPLED_EVERY, CudaClock
from tests.fakes import seconds_of
from tests.simulated_cuda import patch, tensors

# seconds of the device, which differ from step to step
PARTS = {"copy": 0.1, "forward": 0.5, "backward": 1.0, "optimizer": 0.2, "report": 0.01}


def totals(every, seed, lap):
    """Return the seconds by name over all laps of 700 steps."""
    sums = dict.fromkeys(PARTS, 0.0)
    with patch.simulated(seed) as device:
        clock = CudaClock(tensors.CUDA, every)
        for number in range(700):
            clock.mark("wait")
            for name, seconds in PARTS.items():
                device.current.run(lambda: None, seconds * (1 + number % 7 / 20))
                clock.mark(name)
            if number % lap == lap - 1 or number == 699:
                if number == 699:
                    device.synchronize()
                sums |= {name: sums.get(name, 0.0) + s for name, s in seconds_of(clock).items()}
    return {name: sums[name] for name in PARTS}


@pytest.mark.parametrize(("seed", "lap"), [(0, 50), (0, 1)])
def test_sampled_and_full_spans_agree_within_two_percent(seed, lap):
    full = totals(1, seed, lap)
    assert totals(SAMPLED_EVERY, seed, lap) == pytest.approx(full, rel=0.02)


def train(clock, device, steps, seconds, report_every=10, pause_s=0.0):
    """Mark the steps of a training of ``seconds(step)``; return the spans of all laps."""
    laps = []
    for number in range(steps):
        clock.mark("wait")
        device.current.run(lambda: None, seconds(number))
        clock.mark("forward")
        if number % report_every == report_every - 1:
            device.synchronize()  # a report reads the loss
            laps.append(clock.spans())
            torch.cuda.Stream(tensors.CUDA).run(lambda: None, pause_s)
            device.synchronize()
        clock.mark("report")
    device.synchronize()
    return [*laps, clock.spans()]


def forward_of(laps):
    spans = [lap.get("forward", Span()) for lap in laps]
    return sum(span.total_s for span in spans), sum(span.num_steps for span in spans)


@pytest.mark.parametrize("report_every", [1, 50])
def test_a_slow_first_step_stands_for_itself_alone(report_every):
    with patch.simulated(0) as device:
        clock = CudaClock(tensors.CUDA, SAMPLED_EVERY)
        laps = train(clock, device, 100, lambda number: 1.0 if number else 100.0, report_every)
    total_s, num_steps = forward_of(laps)
    assert total_s == pytest.approx(199, rel=0.02)
    assert num_steps == pytest.approx(100, abs=1)


@pytest.mark.parametrize("every", [1, SAMPLED_EVERY])
def test_the_device_waits_for_reports_only_as_often_as_there_are_some(every):
    with patch.simulated(0) as device:
        laps = train(CudaClock(tensors.CUDA, every), device, 200, lambda _: 1.0, pause_s=5.0)
    seconds = [span.total_s for lap in laps for span in lap.values()]
    assert sum(seconds) == pytest.approx(200 + 20 * 5, rel=0.02)


def test_quantiles_of_sampled_spans_are_those_of_the_steps():
    with patch.simulated(0) as device:
        clock = CudaClock(tensors.CUDA, SAMPLED_EVERY)
        laps = train(clock, device, 1500, lambda number: 2.0 if number < 800 else 4.0, 1500)
    whole = Span.summed([lap["forward"] for lap in laps[:2]])
    assert whole.quantile_s(0.5) == pytest.approx(2.0, rel=0.02)
    assert whole.quantile_s(0.9) == pytest.approx(4.0, rel=0.02)


def test_time_that_is_skipped_does_not_count_and_every_wait_of_the_host_does():
    with patch.simulated(0) as device:
        clock = CudaClock(tensors.CUDA, SAMPLED_EVERY)
        for _ in range(32):
            device.current.run(lambda: None, 5.0)
            clock.skip()
            clock.mark("wait")
            device.current.run(lambda: None, 1.0)
            clock.mark("forward")
            clock.mark("report")
        device.synchronize()
        spans = clock.spans()
    assert spans["forward"].total_s == pytest.approx(32.0, rel=0.02)
    assert sum(span.total_s for span in spans.values()) < 40.0
    assert spans["wait"].num_steps == 32


def test_a_loader_that_is_measured_alone_marks_no_end():
    with patch.simulated(0) as device:
        clock = CudaClock(tensors.CUDA, SAMPLED_EVERY)
        for _ in range(600):
            clock.mark("wait")
            device.current.run(lambda: None, 1.0)
            clock.mark("copy")
        device.synchronize()
        assert seconds_of(clock)["copy"] == pytest.approx(600, rel=0.01)
        assert len(clock._marks) + len(clock._free) < 600
