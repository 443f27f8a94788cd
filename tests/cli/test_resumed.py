"""Runs that are continued: under other words, on other data, or after they ended early."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from framework.commands.report.recorded_runs import read_run
from framework.train.checkpoint import newest_state, save_state
from tests.cli.command import is_one_error_line, paceline, write_linear
from tests.faults import forked

SHORT = ("limit=64", "batch_size=16", "sink=[jsonl]", "clock=false", "workers.num=0")
OTHER = "data.val=outputs/data/digits/train.h5"


def trained(*words):
    done = paceline("train", *words)
    assert done.code == 0, done.err
    return done


def summary(run_dir="run"):
    return json.loads(Path(run_dir, "summary.json").read_text())


@pytest.mark.parametrize("killed", [False, True], ids=["finished", "killed"])
def test_a_finished_run_is_validated_on_the_validation_data_that_is_typed(killed):
    trained("epochs=1", *SHORT, "hydra.run.dir=run")
    before = summary()
    if killed:
        Path("run/summary.json").unlink()  # as a run does before it validates again
    done = trained("resume=run", OTHER)
    after = summary()
    assert "validation data differs" in done.err
    assert after["val"] != before["val"]
    assert after["best"] == {**after["val"], "step": before["steps"]}
    assert "recipes=digits" in json.loads(Path("run/run.json").read_text())["overrides"]


def test_an_unfinished_run_forgets_its_best_on_other_validation_data():
    trained("epochs=3", "max_steps=8", *SHORT, "hydra.run.dir=run")
    done = trained("resume=run", OTHER, "max_steps=9")
    assert "best starts over" in done.err
    assert summary()["best"]["step"] > 8


def test_a_run_with_a_folder_of_configurations_is_resumed_again_and_again():
    write_linear(Path("mine"))
    trained("max_steps=2", "--config-dir", "mine", "recipes=linear", *SHORT, "hydra.run.dir=run")
    for steps in (4, 6):
        trained("resume=run", f"max_steps={steps}")
    assert summary()["steps"] == 6


@pytest.mark.parametrize("change", ["optim.lr=0.5", "shuffle=false", "model.num_classes=17"])
def test_the_advice_of_a_refused_resume_works(change):
    trained("epochs=2", "max_steps=4", *SHORT, "hydra.run.dir=run")
    refused = paceline("train", "resume=run", change, "max_steps=8")
    assert is_one_error_line(refused, "K105")
    if change.startswith("model"):
        weights = re.search(r"or begin a new run from its weights: (init=.*)$", refused.last_line)
        trained("epochs=2", "max_steps=8", change, weights[1], *SHORT)
    else:
        advised = re.search(r"or add ('.*')$", refused.last_line)
        trained("resume=run", change, "max_steps=8", *shlex.split(advised[1]))


def test_a_job_of_a_sweep_is_resumed_by_its_own_directory():
    trained("-m", "epochs=1", "seed=1,2", *SHORT, "hydra.sweep.dir=sweep")
    job = next(path for path in Path("sweep").iterdir() if path.is_dir())
    assert "=" in job.name
    trained(f"resume={job}", "epochs=2")
    assert summary(job)["epochs"] == 2


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


@pytest.fixture
def linear():
    """Write a model that learns nothing in two steps an epoch. Return the words to train it."""
    write_linear(Path("mine"))
    words = ("--config-dir", "mine", "recipes=linear", "limit=256", *SHORT[2:], "optim.lr=0")
    return (*words, "epochs=9", "hydra.run.dir=run")


PATIENT = ("stop.metric=accuracy", "stop.patience=3")


def test_patience_goes_on_after_a_kill_and_the_end_is_reported(linear):
    Path("kills.py").write_text(KILLS)
    words = ("watchers.kill={_target_: kills.Kill, step: 4}", "allow_targets=[kills]")
    assert forked.paceline("train", *linear, *PATIENT, *words).code == -9
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


def test_a_run_that_ended_early_continues_if_what_ended_it_is_changed(linear):
    trained(*linear, *PATIENT)
    trained("resume=run", "stop.patience=5")
    assert summary()["steps"] == 12


def test_several_validation_sets_are_named_everywhere(linear):
    trained(*linear, "max_steps=1", "hydra.run.dir=packs")
    stores = "{clean: outputs/data/digits/val.h5, noisy: outputs/data/digits/train.h5}"
    done = trained(*linear, f"data.val={stores}", "best.metric=noisy.loss", "epochs=1")
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["split"] for line in lines] == ["train", "val.clean", "val.noisy"]
    names = ["clean.loss", "clean.accuracy", "noisy.loss", "noisy.accuracy"]
    assert list(summary()["val"]) == names
    assert list(summary()["best"]) == [*names, "step"]
    assert "noisy.accuracy" in done.out
    run = read_run(Path("run"))
    assert list(run.val) == names
    assert {split for split, _ in run.curves} == {"train", "val.clean", "val.noisy"}
    facts = json.loads(Path("run/run.json").read_text())
    assert facts["data"].keys() == {"train", "val.clean", "val.noisy"}


@pytest.mark.parametrize(
    "part",
    [{"init": ["x"]}, {"progress": ["x"]}, {"ends": 3}, {"generators": [torch.zeros(2)]}],
    ids=["init", "progress", "ends", "generators"],
)
def test_a_state_with_a_part_of_another_kind_is_refused_in_one_line(part):
    trained("max_steps=2", *SHORT, "hydra.run.dir=run")
    saved = newest_state(Path("run"))
    save_state(saved.path, {**saved.state, **part}, 2, 99)
    assert is_one_error_line(paceline("train", "resume=run", "max_steps=4"), "K103")
