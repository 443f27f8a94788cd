"""Going on with a run under other words than it was started with, by the real command."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.command import is_one_error_line, paceline, write_linear

SHORT = ["limit=64", "batch_size=16", "sink=[jsonl]", "clock=false"]


def trained(*words):
    done = paceline("train", *words)
    assert done.code == 0, done.err
    return done


def summary(run_dir="run"):
    return json.loads(Path(run_dir, "summary.json").read_text())


def test_a_finished_run_is_validated_on_the_validation_data_that_is_typed():
    trained("epochs=1", *SHORT, "hydra.run.dir=run")
    before = summary()
    done = trained("resume=run", "data.val=outputs/data/digits/train.h5")
    after = summary()
    assert "validation data differs" in done.out + done.err
    assert after["val"] != before["val"]
    assert after["best"] == {**after["val"], "step": before["steps"]}
    assert after["best"]["loss"] != before["best"]["loss"]


def test_an_unfinished_run_begins_best_anew_on_other_validation_data():
    trained("epochs=3", "max_steps=8", *SHORT, "hydra.run.dir=run")
    done = trained("resume=run", "data.val=outputs/data/digits/train.h5", "max_steps=9")
    assert "best starts over" in done.out + done.err
    assert summary()["best"]["step"] > 8


def test_a_resumed_run_keeps_its_recipe_when_validation_data_is_typed():
    trained("epochs=1", *SHORT, "hydra.run.dir=run")
    trained("resume=run", "data.val=outputs/data/digits/train.h5")
    assert "recipes=digits" in json.loads(Path("run/run.json").read_text())["overrides"]


def test_a_run_with_a_folder_of_configurations_is_resumed_again_and_again():
    write_linear(Path("mine"))
    trained("--config-dir", "mine", "recipes=linear", "max_steps=2", *SHORT, "hydra.run.dir=run")
    for steps in (4, 6, 8):
        trained("resume=run", f"max_steps={steps}")
    assert summary()["steps"] == 8


CHANGES = [
    "seed=1",
    "optim.lr=0.5",
    "optim.momentum=0.1",
    "model.num_classes=17",
    "optim=adam",
    "clip_norm=1.0",
    "shuffle=false",
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_advice_of_a_refused_resume_works(change):
    trained("epochs=2", "max_steps=4", *SHORT, "hydra.run.dir=run")
    refused = paceline("train", "resume=run", change, "max_steps=8")
    assert is_one_error_line(refused, "K105")
    advised = re.search(r"or add ('.*')$", refused.last_line)
    if advised is None:
        weights = re.search(r"or begin a new run from its weights: (init=.*)$", refused.last_line)
        trained("epochs=2", "max_steps=8", change, weights[1], *SHORT)
    else:
        trained("resume=run", change, "max_steps=8", *shlex.split(advised[1]))
    assert (advised is None) == (change in ("model.num_classes=17", "optim=adam"))
