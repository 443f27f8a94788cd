"""Runs that end early, and runs with several validation sets, from the command line."""

import json
import signal
from pathlib import Path

import pytest

from framework.commands.report.read_run import read_run
from tests.cli.command import is_one_error_line, paceline, started, write_linear

SMALL = ("--config-dir", "mine", "recipes=linear", "limit=256", "workers.num=0", "sink=[jsonl]")

KILLS = '''
import os
from pathlib import Path
from framework import Watcher

class Kill(Watcher):
    """Kills the run once, after the save at a step."""

    def __init__(self, step):
        self.step = step

    def after_save(self, moment):
        if moment.step == self.step and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), 9)

    def at_end(self, moment):
        Path("ended").write_text(moment.reason)
'''


def trained(*words):
    done = paceline("train", *words)
    assert done.code == 0, done.err
    return done


def summary(run_dir="run"):
    return json.loads(Path(run_dir, "summary.json").read_text())


def reports(run_dir="run"):
    return [json.loads(line) for line in Path(run_dir, "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def linear():
    """Write a model that never learns, and return the words that train it.

    It is as good after each epoch of two steps.
    """
    write_linear(Path("mine"))
    return (*SMALL, "optim.lr=0", "epochs=9", "stop.metric=accuracy", "stop.patience=3")


def test_patience_goes_on_after_a_kill_and_a_resumed_run_says_that_it_has_ended(linear):
    Path("kills.py").write_text(KILLS)
    words = ("watchers.kill={_target_: kills.Kill, step: 4}", "allow_targets=[kills]")
    assert started("train", *linear, *words, "hydra.run.dir=run").code == -signal.SIGKILL
    done = trained("resume=run", "allow_targets=[kills]")
    assert (summary()["status"], summary()["steps"], summary()["run_steps"]) == ("finished", 8, 4)
    reason = summary()["reason"]
    assert reason.startswith("no better accuracy in 3 validations")
    assert f"ended early: {reason}" in done.out
    assert Path("ended").read_text() == reason
    assert json.loads(Path("run/exit.json").read_text())["reason"] == f"finished early: {reason}"
    again = trained("resume=run", "allow_targets=[kills]")
    assert f"note: this run has already finished early, after 8 steps: {reason}" in again.err
    assert summary()["steps"] == 8


def test_a_run_that_ended_early_goes_on_when_what_ended_it_is_changed(linear):
    trained(*linear, "hydra.run.dir=run")
    trained("resume=run", "stop.patience=5")
    assert summary()["steps"] == 12


def test_several_validation_sets_are_named_everywhere(linear):
    trained(*linear, "max_steps=1", "hydra.run.dir=packs")
    stores = "{clean: outputs/data/digits/val.h5, noisy: outputs/data/digits/train.h5}"
    words = (f"data.val={stores}", "best.metric=noisy.loss", "epochs=1", "hydra.run.dir=run")
    done = trained(*linear[:-2], *words)
    assert [line["split"] for line in reports()] == ["train", "val.clean", "val.noisy"]
    names = ["clean.loss", "clean.accuracy", "noisy.loss", "noisy.accuracy"]
    assert list(summary()["val"]) == names
    assert list(summary()["best"]) == [*names, "step"]
    assert "noisy.accuracy" in done.out
    run = read_run(Path("run"))
    assert list(run.val) == names
    assert {split for split, _ in run.curves} == {"train", "val.clean", "val.noisy"}
    facts = json.loads(Path("run/run.json").read_text())
    assert facts["data"].keys() == {"train", "val.clean", "val.noisy"}


def test_another_store_in_a_set_is_other_validation_data(linear):
    trained(*linear, "max_steps=2", "hydra.run.dir=packs")
    folder = "outputs/data/digits"
    trained(*linear[:-2], f"data.val={{a: {folder}/val.h5}}", "max_steps=2", "hydra.run.dir=run")
    done = trained("resume=run", "max_steps=4", f"data.val={{a: {folder}/train.h5}}")
    assert "validation data differs" in done.err
    done = trained("resume=run", "max_steps=6", f"data.val={{a: {folder}/train.h5}}")
    assert "validation data differs" not in done.err


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["best.metric=f1"], "C331"),
        (["data.val={a.b: x.h5}"], "C330"),
        (["stop.after=soon"], "C337"),
        (["metrics.x={_target_: torch.nn.ReLU}"], "C332"),
        (["watchers={x: {_target_: torch.nn.ReLU}}"], "C333"),
    ],
)
def test_what_cannot_be_is_one_line_before_the_first_step(linear, words, number):
    pytest.importorskip("torchmetrics")
    assert is_one_error_line(paceline("train", *linear, *words), number)
