import json
import os

import pytest
import torch

from framework.contracts.span import EXCHANGE, OWN
from framework.measure import clock as module
from tests.fakes import FakeClock, FakeLoader, make_data, make_trainer, seconds_of

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")


class Time:
    """A clock that a test advances, and a device whose events are like ``torch.cuda.Event``."""

    def __init__(self, monkeypatch):
        self.now, self.done_at, self.made, self.waited = 100.0, 100.0, 0, 0
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "stream")
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(self))

    def work(self, seconds):
        """Let the host work."""
        self.now += seconds

    def launch(self, seconds):
        """Let the device work, after everything that was launched before."""
        self.done_at = max(self.done_at, self.now) + seconds

    def read(self):
        """Wait for the device, as ``.cpu()`` does."""
        self.now = max(self.now, self.done_at)


class Event:
    def __init__(self, time):
        self.time, self.at = time, None
        time.made += 1

    def record(self, stream):
        assert stream == "stream"
        self.at = self.time.done_at = max(self.time.done_at, self.time.now)

    def query(self):
        return self.time.now >= self.at

    def elapsed_time(self, end):
        assert self.query()
        assert end.query()
        return 1e3 * (end.at - self.at)

    def synchronize(self):
        self.time.waited += 1


@pytest.fixture
def time(monkeypatch):
    return Time(monkeypatch)


def test_the_clock_of_a_rank_counts_exchanges_apart(time):
    clock = module.HostClock(of_rank=True)
    for name, seconds in (("wait", 1.0), (OWN, 2.0), (EXCHANGE, 4.0), ("forward", 8.0)):
        time.work(seconds)
        clock.mark(name)
    assert seconds_of(clock) == {"wait": 1.0, "forward": 10.0, EXCHANGE: 4.0}
    time.work(1.0)
    clock.mark("optimizer")
    assert seconds_of(clock) == {"optimizer": 1.0}
    assert [row[1:] for row in clock.own_work()] == [(4.0, 1.0, 0, 10.0, 0, 0, 0)]


@pytest.mark.parametrize("of_rank", [False, True])
def test_a_span_in_both_parts_of_a_step_that_is_cut_counts_as_one_step(time, of_rank):
    clock = module.HostClock(of_rank)
    laps = []
    for _ in range(3):
        step(clock, time, (OWN, 1.0), (EXCHANGE, 2.0), ("optimizer", 1.0))
        laps.append(clock.spans())
        step(clock, time, (OWN, 1.0), (EXCHANGE, 3.0), ("report", 1.0))
    assert [lap[EXCHANGE].total_s for lap in laps] == [2.0, 5.0, 5.0]
    assert [lap[EXCHANGE].num_steps for lap in laps] == [1, 1, 1]
    assert [lap["optimizer"].num_steps for lap in laps] == [1, 1, 1]


def step(clock, time, *seconds):
    """Mark one step whose parts are (name, seconds)."""
    for name, part_s in seconds:
        time.work(part_s)
        clock.mark(name)


def cuda_step(clock, time, wait=0.0, device=0.0, report=0.0):
    """Mark a step of waiting, reporting and the device's work, half of it forward, in s."""
    time.work(wait)
    clock.mark("wait")
    for name in ("copy", "forward", "backward", "optimizer"):
        time.launch(device / 2 if name in ("forward", "backward") else 0.0)
        clock.mark(name)
    time.work(report)
    clock.mark("report")


def test_a_host_that_waits_while_the_device_works_leaves_no_device_idle(time):
    clock = module.CudaClock(torch.device("cuda"))
    for _ in range(10):
        cuda_step(clock, time, wait=1.0, device=3.0)
    time.read()
    lap = seconds_of(clock)
    assert lap["wait"] == 10.0
    assert lap["idle"] == 1.0  # before the very first batch
    assert lap["forward"] == lap["backward"] == 15.0


@pytest.mark.parametrize(
    ("wait", "device", "report"),
    [(1.0, 3.0, 0.0), (3.0, 1.0, 0.5), (0.25, 0.25, 4.0), (0.0, 1.0, 0.0)],
)
def test_everything_but_the_hosts_wait_adds_up_to_the_devices_time(time, wait, device, report):
    clock = module.CudaClock(torch.device("cuda"))
    for _ in range(7):
        cuda_step(clock, time, wait, device, report)
    time.read()
    began, lap = 100.0, seconds_of(clock)
    assert sum(seconds for name, seconds in lap.items() if name != "wait") == pytest.approx(
        time.done_at - began
    )


def test_events_are_read_when_the_device_has_passed_them_and_never_waited_for(time):
    clock = module.CudaClock(torch.device("cuda"))
    cuda_step(clock, time, device=2.0)
    early = seconds_of(clock)
    time.work(1.0)
    middle = seconds_of(clock)
    time.work(1.0)
    late = seconds_of(clock)
    assert (early.keys(), middle.keys(), late.keys()) == (
        {"wait", "idle", "copy"},
        {"forward"},
        {"backward", "optimizer", "report"},
    )
    assert (middle["forward"], late["backward"], time.waited) == (1.0, 1.0, 0)


def test_events_are_used_again_so_that_a_long_run_makes_no_more_of_them(time):
    clock = module.CudaClock(torch.device("cuda"))
    for _ in range(5000):
        cuda_step(clock, time, wait=1.0, device=0.5)
    time.read()
    assert time.made <= module.MOST_EVENTS + 10
    assert clock.spans()["forward"].num_steps == 5000


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_clock_that_is_off_knows_nothing(device):
    clock = module.make_clock(torch.device(device), how=False)
    assert isinstance(clock, module.NoClock)
    for name in ("wait", "forward", "report"):
        clock.mark(name)
    clock.skip()
    assert (clock.spans(), vars(clock)) == ({}, {})


STEP = (
    *(("wait", 1), ("copy", 2), ("forward", 4), (OWN, 8), (EXCHANGE, 100), ("backward", 0)),
    *(("optimizer", 16), (OWN, 32), (EXCHANGE, 200), ("report", 64)),
)


class Marked:
    """Marks with the seconds before each, and what came of them."""

    def __init__(self):
        self.spans = {}
        self.work = module.OwnWork(self.add)

    def add(self, name, seconds):
        self.spans[name] = self.spans.get(name, 0.0) + seconds

    def mark(self, *marks):
        for name, seconds in marks:
            self.work.mark(name, seconds)
        return self


def test_own_work_belongs_to_the_next_span_and_exchanges_to_a_span_of_their_own():
    spans = Marked().mark(*STEP).spans
    seconds = {"wait": 1, "copy": 2, "forward": 4, "backward": 8, EXCHANGE: 300}
    assert spans == {**seconds, "optimizer": 16, "report": 96}


def test_a_row_ends_with_the_exchange_of_the_gradients():
    marked = Marked().mark(*STEP, *STEP, ("wait", 1))
    first, second = marked.work.take()
    assert first == (0.0, 100.0, 1, 2, 4, 8, 0, 0)
    # the update and the report of the first step delay the exchange of the second
    assert second[1:] == (300.0, 1, 2, 4, 8, 16, 96)
    assert marked.work.take() == []


def test_skipped_time_is_nobodys_work_and_no_exchange():
    validation = ((OWN, 500), (EXCHANGE, 70), (module.SKIPPED, 900))
    marked = Marked().mark(*STEP, *validation, *STEP)
    assert marked.spans[EXCHANGE] == 600
    assert sum(marked.spans.values()) == 2 * sum(seconds for _, seconds in STEP)


@pytest.mark.parametrize("num_steps", [10, 11, 40, 41, 1000])
def test_rows_take_fixed_memory_and_keep_the_same_steps_on_all_ranks(monkeypatch, num_steps):
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    marked = Marked()
    for _ in range(num_steps):
        marked.mark(*STEP)
        assert len(marked.work._rows) <= 10
    numbers = [row[0] for row in marked.work.take()]
    stride = numbers[1] - numbers[0]
    assert numbers == list(range(0, num_steps, int(stride)))
    assert len(numbers) >= 5


NAMES = {"wait", "forward", "backward", "optimizer", "report"}


def trained(path, steps, clock=None, **parts):
    """Train for ``steps`` steps under the tracer, and return the Trainer."""
    clock = module.ProfiledClock(clock or module.HostClock(), path)
    trainer = make_trainer(train=FakeLoader(make_data(4 * steps), 4, clock), clock=clock, **parts)
    trainer.fit()
    clock.close()
    return trainer


def ours(path):
    """Return our spans in a trace: its events on our track, in order of time."""
    events = json.loads(path.read_text())["traceEvents"]
    spans = [
        event
        for event in events
        if event.get("tid") == 1 and event["ph"] == "X" and event.get("pid") == os.getpid()
    ]
    return sorted(spans, key=lambda event: event["ts"])


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "profile" / f"rank0{module.ENDING}"
    trained(path, module.LEAST_STEPS + 3)
    return path


def test_the_trace_is_json_with_our_spans_and_the_operators_of_some_steps(trace):
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert names >= NAMES | {"aten::addmm", f"ProfilerStep#{module.LEAST_STEPS - 1}"}
    assert f"ProfilerStep#{module.LEAST_STEPS}" not in names


def test_spans_and_operators_have_the_same_time(trace):
    events = json.loads(trace.read_text())["traceEvents"]
    forwards = [span for span in ours(trace) if span["name"] == "forward"]
    products = [event for event in events if event.get("name") == "aten::addmm"]
    inside = [
        any(s["ts"] <= p["ts"] and p["ts"] + p["dur"] <= s["ts"] + s["dur"] + 1 for s in forwards)
        for p in products
    ]
    assert len(products) == 2 * module.TRACED
    assert all(inside)


@pytest.mark.parametrize("steps", [1, module.LEAST_STEPS - module.TRACED - 1])
def test_a_run_that_ends_before_leaves_nothing(tmp_path, steps):
    trained(tmp_path / f"rank0{module.ENDING}", steps)
    assert list(tmp_path.iterdir()) == []


def test_the_clock_inside_hears_every_mark_and_what_the_tracer_costs_is_skipped(tmp_path):
    inner = FakeClock()
    trained(tmp_path / "trace.json", 20, inner)
    assert inner.marks == ["wait", "forward", "backward", "optimizer", "report"] * 20
    assert inner.skips > module.LEAST_STEPS
    assert torch.autograd.profiler._is_profiler_enabled is False
