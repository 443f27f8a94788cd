import math

import pytest

from framework.diagnosis.code_lines import Sync
from framework.diagnosis.facts import PythonLine, RunFacts
from framework.diagnosis.judge import cause_of, limit_of, verdicts_of
from tests.diagnosis.cases import CUDA, FINE, facts, verdict_of

SYNCS = (Sync("/code/loss.py", 9, "item()", 3000, "total += x.item()"),)
SMALL_STEPS = {**FINE, "other": 600.0}


@pytest.mark.parametrize(
    ("rule", "changes", "speaks"),
    [
        ("data_is_fine", {**FINE}, True),
        ("data_is_fine", {}, False),
        ("amp", {**FINE, **CUDA}, True),
        ("amp", {**FINE}, False),
        ("amp", {**FINE, "bf16": True}, True),
        ("amp", {**FINE, **CUDA, "precision": "amp"}, False),
        ("amp", {**CUDA}, False),
        ("larger_batch", {**SMALL_STEPS}, True),
        ("larger_batch", {**FINE}, False),
        ("larger_batch", {**FINE, "other": None}, False),
        ("channels_last", {**FINE, "convolutional": True}, True),
        ("channels_last", {**FINE}, False),
        ("compile_model", {**SMALL_STEPS, **CUDA}, True),
        ("compile_model", {**SMALL_STEPS}, False),
        ("synchronizations", {**FINE, **CUDA, "syncs": SYNCS}, True),
        ("synchronizations", {**FINE, "syncs": SYNCS}, False),
        ("synchronizations", {**FINE, **CUDA}, False),
    ],
)
def test_a_rule_speaks_where_computing_limits(rule, changes, speaks):
    assert (verdict_of(rule, changes) is not None) == speaks


TINY = {"batch_size": 1}
MOSTLY_FIXED = {"compute": 100.0, "other": 700.0, "other_size": 8}


def test_tiny_batches_slow_loading_as_well():
    verdict = verdict_of("larger_batch", facts(**TINY, **MOSTLY_FIXED, whole=40.0))
    assert set(verdict.parts) >= {"wait", "copy", "forward"}
    assert verdict.overrides == ("batch_size=64",)
    larger = facts(**{**MOSTLY_FIXED, "other_size": 512}, whole=40.0)
    assert verdict_of("larger_batch", larger) is None


LINE = PythonLine("objective", "/code/loss.py", 7, "__call__", "total += x.item()", 0.6)
PARTS_OF = {
    "python_in_model": ("compute", "forward", "backward"),
    "python_in_objective": ("compute", "forward"),
    "python_in_augment": ("copy",),
    "python_in_transform": ("wait",),
}
SHARES = {"objective": 0.8, "model": 0.5, "augment": 0.3, "transform": 0.9}
STEP = {"python": SHARES, "lines": (LINE,)}
READY = {**FINE, "prepare": 30_000.0}  # batches are ready before they are wanted
OF_FUNCTION = {"has_function": True}


@pytest.mark.parametrize(
    ("rule", "changes", "share"),
    [
        ("python_in_objective", {**READY}, "79 %"),
        ("python_in_model", {**READY}, "50 %"),
        ("python_in_augment", {**READY}, "30 %"),
        ("python_in_augment", {}, None),  # a step waits for 75 % of its time
        ("python_in_transform", OF_FUNCTION, "90 %"),
        ("python_in_transform", {}, None),
        ("python_in_transform", {**OF_FUNCTION, **FINE}, None),
    ],
)
def test_a_rule_speaks_where_python_takes_much(rule, changes, share):
    verdict = verdict_of(rule, {**STEP, **changes})
    assert (verdict is None) == (share is None)
    if verdict is not None:
        assert share in verdict.says
        assert verdict.edit
        assert verdict.gain > 1
        assert verdict.parts == PARTS_OF[rule]


def test_the_line_is_named():
    verdict = verdict_of("python_in_objective", facts(**STEP, **READY))
    assert "loss.py:7 (__call__)" in verdict.says
    assert verdict.edit.endswith("loss.py:7 anew: total += x.item()")
    # of a step, 1 % waits
    assert verdict.gain == pytest.approx(1 / (0.99 * (1 - 0.8) + 0.01), rel=0.02)


@pytest.mark.parametrize(
    ("rates", "gain"),
    [
        # half of a step waits, because the threads that prepare wait for Python's lock
        ({"whole": 500.0, "wait": 0.5, "prepare": 30_000.0, "loader_rate": 30_000.0}, 8.6),
        # taking a batch that is ready costs a tenth of a step
        ({"whole": 900.0, "wait": 0.1, "prepare": 30_000.0}, 1 / (0.9 * 0.2 + 0.1)),
        # batches cost as much as half of what Python takes
        ({**FINE, "prepare": 1000.0, "prepare_two": 2000.0}, 2.0),
        # the loader alone makes 500 records a second, so half of the step is left
        ({"prepare": None}, 1 / (0.5 + 0.2 / 4)),
    ],
)
def test_without_python_a_step_waits_only_for_what_batches_cost(rates, gain):
    step = {"objective": 0.8}
    verdict = verdict_of("python_in_objective", facts(python=step, **rates))
    assert verdict.gain == pytest.approx(gain, rel=0.05)


# A step of 64 records takes 64 ms.
STEPS = {**FINE, "whole": 1000.0, "compute": 1000.0}
VALIDATES = {"validate_s": 1.0, "validate_every": 10.0}
SAVES = {"save_s": 0.32, "save_every": {"checkpoint.every_steps": 5.0}}
REPORTS = {"report_s": {"jsonl": 0.001, "mine": 0.063}, "report_every": 1}


def case(**run):
    return facts(**STEPS, run=RunFacts(**{"epoch_steps": 1000, **run}))


@pytest.mark.parametrize(
    ("rule", "run", "cost_s", "key"),
    [
        ("frequent_validation", VALIDATES, 1.0, "validate_every"),
        ("frequent_saving", SAVES, 0.32, "checkpoint.every_steps"),
        ("chatty_sinks", REPORTS, 0.064, "report_every"),
    ],
)
def test_the_advised_interval_leaves_less_than_three_percent(rule, run, cost_s, key):
    verdict = verdict_of(rule, case(**run))
    name, _, every = verdict.overrides[0].partition("=")
    assert name == key
    assert 0.025 < cost_s / int(every) / 0.064 <= 0.0301


def test_each_key_that_saves_too_often_is_changed():
    every = {"checkpoint.every_epochs": 100.0, "checkpoint.every_s": 50.0, "validate_every": 1e6}
    verdict = verdict_of("frequent_saving", case(save_s=2.0, save_every=every, epoch_steps=100))
    words = dict(word.split("=") for word in verdict.overrides)
    assert words.keys() == {"checkpoint.every_epochs", "checkpoint.every_s"}
    steps = 2.0 / 0.03 / 0.064
    assert int(words["checkpoint.every_epochs"]) == math.ceil(math.ceil(steps / 100) * 100 / 100)
    assert int(words["checkpoint.every_s"]) >= steps * 0.064


def test_reports_at_the_ends_of_short_epochs_stay():
    verdict = verdict_of("chatty_sinks", case(**REPORTS, epoch_steps=16))
    assert verdict.overrides == ("report_every=16",)
    assert verdict.gain == pytest.approx(128 / 68)
    already = verdict_of("chatty_sinks", case(**{**REPORTS, "report_every": 16}, epoch_steps=16))
    assert (already.overrides, already.action) == ((), "leave out sink=mine")


def test_a_run_that_mostly_validates_is_limited_by_it():
    known = case(**VALIDATES)
    verdicts = verdicts_of(known)
    cause = cause_of(known, verdicts, ())
    assert cause.rule == "frequent_validation"
    assert limit_of(known, cause).startswith("Validating limits training: validating takes 61 %")


@pytest.mark.parametrize(
    ("intervals", "per_step"),
    [((), 0.0), ((10,), 0.1), ((10, 20), 0.1), ((10, 15), 0.1 + 1 / 15 - 1 / 30)],
)
def test_saves_that_coincide_count_once(intervals, per_step):
    run = RunFacts(100, save_every={str(every): every for every in intervals})
    assert run.saves_per_step == pytest.approx(per_step, rel=0.01)


def test_shares_are_of_a_run_with_all_that_it_does():
    run = RunFacts(
        100,
        validate_s=1.0,
        validate_every=100,
        save_s=0.5,
        save_every={"checkpoint.every_steps": 50},
        report_s={"jsonl": 0.001, "mine": 0.009},
        report_every=1,  # the ends of epochs coincide with it
    )
    assert run.costs_s == pytest.approx({"validating": 0.01, "saving": 0.01, "reporting": 0.01})
    assert run.shares(0.01) == pytest.approx(dict.fromkeys(run.costs_s, 0.25))
