"""Continuing a saved run: the state is loaded, or refused with the reason."""

from contextlib import closing

import pytest
import torch

from framework.config.assemble import assemble
from framework.config.restore_run import restore
from framework.config.resume import ending
from framework.config.training_parts import training_parts
from framework.errors import CheckpointError
from framework.train.trainer import Trainer
from tests.commands.tune.test_candidate import config_of

NO_STOP = {"metric": None, "mode": "auto", "patience": None, "after": None}
SYNTHETIC = ("data=synthetic", "data.val=null", "prepare=null", "workers.num=0", "max_steps=2")


def saved_state(*words):
    with closing(assemble(config_of(*SYNTHETIC, *words), ())) as assembly:
        trainer = Trainer(training_parts(assembly))
        trainer.fit()
        facts = {"learned": assembly.learns, "validation": assembly.validates}
        facts["ends"] = assembly.ends
        return {**trainer.state_dict(), **facts}


def restored(state, *words):
    config = config_of(*SYNTHETIC, "max_steps=4", *words)
    config["resume"] = {"run": "RUN", "auto": False, "allow": []}
    with closing(assemble(config, ())) as assembly:
        trainer = Trainer(training_parts(assembly))
        return restore(trainer, assembly, state), trainer


@pytest.fixture(scope="module")
def state():
    return saved_state()


def test_a_state_continues_where_it_was_saved(state):
    anew, trainer = restored(state)
    assert not anew
    assert trainer.progress.step == 2
    for name, value in trainer.stepper.model.state_dict().items():
        assert torch.equal(value, state["model"][name])


def test_figures_of_other_validation_data_are_dropped(state):
    other = {**state, "validation": {"data.records": 7}, "best": {"loss": 1.0, "step": 2}}
    anew, trainer = restored({**other, "val": {"loss": 1.0}})
    assert anew
    assert trainer.best == {}


def test_a_run_that_learns_something_else_is_refused(state):
    with pytest.raises(CheckpointError, match=r"K105.*optim.lr"):
        restored(state, "optim.lr=0.123")


def test_a_state_of_another_form_is_refused(state):
    with pytest.raises(CheckpointError, match=r"K103.*from its weights: init=RUN$"):
        restored({**state, "progress": {"step": "two"}})


WATCHED = {
    "ended": "enough",
    "watching": {"reason": "late", "watchers": {"stop.patience": {"n": 1}, "watchers.a": {}}},
}


def test_a_run_that_has_ended_goes_on_only_if_what_ends_it_has_changed(state):
    same = {**state, **WATCHED, "ends": ending({"stop": NO_STOP})}
    assert restored(same)[1].ended == "enough"
    assert restored(same, "stop.after=2h")[1].ended == ""
