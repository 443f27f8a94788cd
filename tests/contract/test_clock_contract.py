from time import perf_counter

import pytest
import torch

from framework.contracts.span import IDLE, step_s
from framework.measure.clock import CudaClock, HostClock, ProfiledClock
from tests.fakes import seconds_of

cuda = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")]
CLOCKS = [
    pytest.param(lambda _: HostClock(), id="HostClock"),
    pytest.param(lambda _: HostClock(of_rank=True), id="rank"),
    pytest.param(lambda _: CudaClock(torch.device("cuda")), marks=cuda, id="CudaClock"),
    pytest.param(lambda path: ProfiledClock(HostClock(), path / "trace.json"), id="ProfiledClock"),
]


@pytest.fixture(params=CLOCKS)
def clock(request, tmp_path):
    clock = request.param(tmp_path)
    yield clock
    if isinstance(clock, ProfiledClock):
        clock.close()


def work():
    """Keep the device and the host busy for at least 2 ms."""
    if torch.cuda.is_available():
        torch.cuda._sleep(5_000_000)
    end = perf_counter() + 2e-3
    while perf_counter() < end:
        pass


def marked(clock, *names):
    """Work, mark these names, and wait for the device."""
    work()
    for name in names:
        clock.mark(name)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def test_time_belongs_to_the_name_of_the_mark_that_ends_it_and_is_handed_in_once(clock):
    clock.skip()
    marked(clock, "forward", "backward")
    spans_s = seconds_of(clock)
    assert spans_s["forward"] > spans_s["backward"] >= 0.0
    assert spans_s.keys() == {"forward", "backward"}
    assert sum(seconds_of(clock).values()) == 0.0


def test_nothing_is_counted_twice_or_left_over(clock):
    start = perf_counter()
    clock.skip()
    marked(clock, "wait", "copy", "forward", "wait")
    spans = clock.spans()
    assert 0.0 < step_s(spans) <= perf_counter() - start
    assert spans["wait"].total_s > 0.0


def test_skipped_time_is_not_counted(clock):
    counted_s = 0.0
    for _ in range(2):
        work()
        start = perf_counter()
        clock.skip()
        marked(clock, "forward")
        counted_s += perf_counter() - start
    assert 0.0 < sum(seconds_of(clock).values()) <= counted_s


def test_seconds_of_a_name_add_up(clock):
    clock.skip()
    for _ in range(5):
        marked(clock, "forward")
    assert seconds_of(clock)["forward"] > 2e-3 * 4


def test_a_step_ends_with_its_report_and_counts_once(clock):
    clock.skip()
    for _ in range(4):
        marked(clock, "wait", "forward", "wait", "forward", "report")
    spans = {name: span.num_steps for name, span in clock.spans().items() if name != IDLE}
    assert spans == {"wait": 4, "forward": 4, "report": 4}
    assert clock.spans() == {}
