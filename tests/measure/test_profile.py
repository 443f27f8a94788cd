import json
import os

import pytest
import torch

from framework.measure.clock import HostClock
from framework.measure.profile import ENDING, LEAST_STEPS, TRACED, ProfiledClock
from tests.fakes import FakeClock, FakeLoader, make_data, make_trainer

NAMES = {"wait", "forward", "backward", "optimizer", "report"}


def trained(path, steps, clock=None, **parts):
    """Train for ``steps`` steps under the tracer, and return the Trainer."""
    clock = ProfiledClock(clock or HostClock(), path)
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
    path = tmp_path_factory.mktemp("run") / "profile" / f"rank0{ENDING}"
    trained(path, LEAST_STEPS + 3)
    return path


def test_the_trace_is_json_with_our_spans_and_the_operators_of_some_steps(trace):
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert names >= NAMES | {"aten::addmm", f"ProfilerStep#{LEAST_STEPS - 1}"}
    assert f"ProfilerStep#{LEAST_STEPS}" not in names


def test_spans_and_operators_have_the_same_time(trace):
    events = json.loads(trace.read_text())["traceEvents"]
    forwards = [span for span in ours(trace) if span["name"] == "forward"]
    products = [event for event in events if event.get("name") == "aten::addmm"]
    inside = [
        any(s["ts"] <= p["ts"] and p["ts"] + p["dur"] <= s["ts"] + s["dur"] + 1 for s in forwards)
        for p in products
    ]
    assert len(products) == 2 * TRACED
    assert all(inside)


@pytest.mark.parametrize("steps", [1, LEAST_STEPS - TRACED - 1])
def test_a_run_that_ends_before_leaves_nothing(tmp_path, steps):
    trained(tmp_path / f"rank0{ENDING}", steps)
    assert list(tmp_path.iterdir()) == []


def test_the_clock_inside_hears_every_mark_and_what_the_tracer_costs_is_skipped(tmp_path):
    inner = FakeClock()
    trained(tmp_path / "trace.json", 20, inner)
    assert inner.marks == ["wait", "forward", "backward", "optimizer", "report"] * 20
    assert inner.skips > LEAST_STEPS
    assert torch.autograd.profiler._is_profiler_enabled is False
