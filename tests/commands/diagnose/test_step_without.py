import time
from collections import Counter

import pytest
import torch

from framework.commands.diagnose import step_without
from framework.commands.diagnose.step_without import (
    LEAST_STEPS,
    operators_s,
    step_without_objective,
)
from framework.config.training_parts import training_parts
from tests.commands.diagnose.sleepy import sleepy_probe

SECONDS = {"model": 0.001, "objective": 0.002, "augment": 0.003}
TWICE = ["objective._target_=sleepy.Twice"]


def sleeps_without(tmp_path, monkeypatch, words=()):
    """Return the seconds of a step, and how often each part slept to measure them."""
    calls = Counter()
    with sleepy_probe(tmp_path, monkeypatch, words, **SECONDS) as probe:
        parts = training_parts(probe.assembly)
        monkeypatch.setattr(time, "sleep", lambda seconds: calls.update([seconds]))
        seconds = step_without_objective(probe, parts, 0.0)
    return seconds, {name: calls[SECONDS[name]] for name in SECONDS}


def test_the_objective_only_shows_how_it_calls_the_model(tmp_path, monkeypatch):
    seconds, calls = sleeps_without(tmp_path, monkeypatch)
    assert seconds > 0
    assert calls == {"model": LEAST_STEPS + 2, "objective": 1, "augment": 1}


def test_an_objective_that_calls_the_model_twice_is_not_left_out(tmp_path, monkeypatch):
    assert sleeps_without(tmp_path, monkeypatch, TWICE)[0] is None


def test_operators_and_update_are_repeated_without_the_model_s_python(tmp_path, monkeypatch):
    calls = Counter()
    with sleepy_probe(tmp_path, monkeypatch, **SECONDS) as probe:
        parts = training_parts(probe.assembly)
        before = [weight.detach().clone() for weight in parts.model.parameters()]
        monkeypatch.setattr(time, "sleep", lambda seconds: calls.update([seconds]))
        assert operators_s(probe, parts, 0.0) > 0
        changed = zip(before, parts.model.parameters(), strict=True)
        assert any(not old.equal(new) for old, new in changed)
    assert calls[SECONDS["model"]] == 3


@pytest.mark.parametrize(
    ("took_s", "kept"),
    [(0.0, ["linear", "linear"]), (1.0, ["ones", "linear", "mean", "flatten", "linear"])],
)
def test_layers_and_long_operators_are_no_python(tmp_path, monkeypatch, took_s, kept):
    clock = iter(took_s * number for number in range(1000))
    with sleepy_probe(tmp_path, monkeypatch) as probe:
        parts = training_parts(probe.assembly)
        monkeypatch.setattr(step_without, "thread_time", lambda: next(clock))
        operators = step_without._Operators()
        with operators:
            parts.model(probe.batch()["image"])
    names = [call.func.__name__ for call in operators.calls]
    assert [name for name in names if name in ("ones", "linear", "mean", "flatten")] == kept


def test_a_backward_pass_that_cannot_be_repeated_is_not_measured(tmp_path, monkeypatch):
    with sleepy_probe(tmp_path, monkeypatch) as probe:
        parts = training_parts(probe.assembly)
        backward = torch.Tensor.backward
        monkeypatch.setattr(torch.Tensor, "backward", lambda loss, **_: backward(loss))
        assert operators_s(probe, parts, 0.0) is None
