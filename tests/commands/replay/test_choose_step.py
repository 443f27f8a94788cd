"""What a run tells of its steps, and which of them a text names."""

import json
import math
from pathlib import Path

import pytest

from framework.commands.replay.step_again import (
    LoggedReport,
    RunHistory,
    StepSearch,
    choose_step,
    read_history,
)
from framework.errors import ConfigError
from framework.system.run_dir import write_object
from framework.train.checkpoint import save_state


def history(*reports, last_step=20, diverged=False):
    return RunHistory(Path("run"), {}, {}, reports, last_step, diverged)


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
    assert search == StepSearch(11, 13)


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


# -------------------------------------------------------------------- what the files of a run tell


def line(step, split="train", **more):
    values = {"step": step, "epoch": 1, "split": split, "loss": 1.5 / step, "lr": 0.1}
    return json.dumps({**values, **more}) + "\n"


def test_reports_cover_the_steps_since_the_one_before(tmp_path):
    text = line(5) + line(5, "val") + "damaged\n" + line(8, skipped=2)
    (tmp_path / "metrics.jsonl").write_text(text)
    expected = [LoggedReport(1, 5, {"loss": 0.3}, 0), LoggedReport(6, 8, {"loss": 1.5 / 8}, 2)]
    assert read_history(tmp_path).reports == expected


def test_the_last_step_is_the_last_that_any_file_knows(tmp_path):
    assert read_history(tmp_path).last_step == 0
    (tmp_path / "metrics.jsonl").write_text(line(5))
    write_object(tmp_path / "exit.json", {"code": 6, "step": 7})
    history = read_history(tmp_path)
    assert (history.last_step, history.diverged) == (7, True)


def test_states_are_known_by_their_steps_without_those_that_a_resume_left_behind(tmp_path):
    for sequence, step in enumerate((4, 8, 6), 1):
        save_state(tmp_path / "checkpoints" / f"step-{step:08}.pt", {"step": step}, step, sequence)
    (tmp_path / "checkpoints" / "step-00000009.pt").write_bytes(b"no state")
    assert sorted(read_history(tmp_path).states) == [4, 6]
