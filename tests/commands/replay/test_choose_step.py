"""Which step a text names."""

import math
from pathlib import Path

import pytest

from framework.commands.replay.choose_step import StepSearch, choose_step
from framework.commands.replay.run_history import LoggedReport, RunHistory
from framework.errors import ConfigError


def history(*reports, last_step=20, diverged=False):
    return RunHistory(Path("run"), {}, {}, (), tuple(reports), (), last_step, diverged)


REPORTS = (
    LoggedReport(1, 5, {"loss": 2.0, "accuracy": 0.1}, 0),
    LoggedReport(6, 10, {"loss": 3.0, "accuracy": 0.3}, 0),
    LoggedReport(11, 20, {"loss": 1.0, "accuracy": 0.2}, 1),
)


@pytest.mark.parametrize(
    ("text", "first"), [("max:loss", 6), ("min:loss", 11), ("min:accuracy", 1), ("nan", 11)]
)
def test_the_worst_report_is_searched(text, first):
    assert choose_step(text, history(*REPORTS)).first == first


def test_a_mean_that_is_no_number_is_the_worst():
    bad = LoggedReport(21, 25, {"loss": math.nan}, 0)
    assert choose_step("min:loss", history(*REPORTS, bad)).first == 21


def test_a_run_that_diverged_is_searched_after_its_last_report():
    search = choose_step("nan", history(*REPORTS[:2], last_step=12, diverged=True))
    assert search == StepSearch(11, 13, "")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 340),
        ("-3", 340),
        ("worst", 340),
        ("21", 341),
        ("max:los", 342),
        ("max:", 340),
        ("nan", 343),
    ],
)
def test_what_names_no_step_is_said(text, number):
    with pytest.raises(ConfigError, match=f"C{number}"):
        choose_step(text, history(*REPORTS[:2]))
