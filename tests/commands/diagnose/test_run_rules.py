import math

import pytest

from framework.commands.diagnose.diagnosis import cause_of, limit_of
from framework.commands.diagnose.rules import verdicts_of
from framework.commands.diagnose.run_facts import RunFacts
from framework.commands.diagnose.run_rules import (
    chatty_sinks,
    frequent_saving,
    frequent_validation,
)
from tests.commands.diagnose.cases import FINE, facts

# A step of 64 records takes 64 ms.
STEPS = {**FINE, "whole": 1000.0, "compute": 1000.0}
VALIDATES = {"validate_s": 1.0, "validate_every": 10.0}
SAVES = {"save_s": 0.32, "save_every": {"checkpoint.every_steps": 5.0}}
REPORTS = {"report_s": {"jsonl": 0.001, "mine": 0.063}, "report_every": 1}


def case(**run):
    return facts(rates=STEPS, on_run=RunFacts(**{"epoch_steps": 1000, **run}))


@pytest.mark.parametrize(
    ("rule", "run", "cost_s", "key"),
    [
        (frequent_validation, VALIDATES, 1.0, "validate_every"),
        (frequent_saving, SAVES, 0.32, "checkpoint.every_steps"),
        (chatty_sinks, REPORTS, 0.064, "report_every"),
    ],
)
def test_the_advised_interval_leaves_less_than_three_percent(rule, run, cost_s, key):
    verdict = rule(case(**run))
    name, _, every = verdict.overrides[0].partition("=")
    assert name == key
    assert 0.025 < cost_s / int(every) / 0.064 <= 0.0301


def test_each_key_that_saves_too_often_is_changed():
    every = {"checkpoint.every_epochs": 100.0, "checkpoint.every_s": 50.0, "validate_every": 1e6}
    verdict = frequent_saving(case(save_s=2.0, save_every=every, epoch_steps=100))
    words = dict(word.split("=") for word in verdict.overrides)
    assert words.keys() == {"checkpoint.every_epochs", "checkpoint.every_s"}
    steps = 2.0 / 0.03 / 0.064
    assert int(words["checkpoint.every_epochs"]) == math.ceil(math.ceil(steps / 100) * 100 / 100)
    assert int(words["checkpoint.every_s"]) >= steps * 0.064


def test_reports_at_the_ends_of_short_epochs_stay():
    verdict = chatty_sinks(case(**REPORTS, epoch_steps=16))
    assert verdict.overrides == ("report_every=16",)
    assert verdict.gain == pytest.approx(128 / 68)
    already = chatty_sinks(case(**{**REPORTS, "report_every": 16}, epoch_steps=16))
    assert (already.overrides, already.action) == ((), "leave out sink=mine")


def test_a_run_that_mostly_validates_is_limited_by_it():
    known = case(**VALIDATES)
    verdicts = verdicts_of(known)
    cause = cause_of(known, verdicts, ())
    assert cause.rule == "frequent_validation"
    assert limit_of(known, cause).startswith("Validating limits training: validating takes 61 %")
