"""An evaluation of a saved run: its means, and what is found on the way."""

import pytest
import torch

from framework.commands.evaluate.evaluation import EvaluationJob, evaluate_run
from framework.config.saved_run import ALONE
from framework.objective.classify import Classify
from tests.saved_runs import digits_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    digits_run(folder, "max_steps=3")
    return folder


def evaluated(worst=5, say=print):
    shown = []
    job = EvaluationJob("run", "last", {"parallel": ALONE}, None, None, None, worst)
    summary = evaluate_run(job, (), say, lambda *arguments: shown.append(arguments))
    return summary["sets"]["val"], shown


def test_the_worst_records_have_the_highest_losses(made, monkeypatch):
    monkeypatch.chdir(made)
    few, _ = evaluated(worst=5)
    every, _ = evaluated(worst=360)
    losses = [record["loss"] for record in every["worst"]]
    assert losses == sorted(losses, reverse=True)
    assert few["worst"] == every["worst"][:5]
    assert sum(losses) / 360 == pytest.approx(few["means"]["loss"], rel=1e-5)


def test_an_objective_that_needs_whole_batches_costs_the_page_only(made, monkeypatch):
    def refuse(self, model, batch):
        if len(batch["label"]) == 1:
            raise ValueError("too few")
        return call(self, model, batch)

    call = Classify.__call__
    monkeypatch.chdir(made)
    monkeypatch.setattr(Classify, "__call__", refuse)
    notes: list[str] = []
    val_figures, _ = evaluated(say=notes.append)
    assert val_figures["worst"] == []
    assert "ValueError: too few" in notes[0]
    assert torch.tensor(val_figures["confusion"]).sum() == 360
