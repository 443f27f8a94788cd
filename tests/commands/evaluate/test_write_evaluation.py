"""The files of an evaluation, with and without the extra that draws."""

import json
from pathlib import Path

import pytest

from framework.commands.evaluate import write_evaluation as module
from framework.commands.evaluate.evaluation import EvaluationJob
from framework.config.saved_run import ALONE
from framework.errors import ResourceError
from tests.saved_runs import digits_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("write")
    digits_run(folder, "max_steps=2")
    return folder


def test_without_the_extra_the_figures_are_written_alone(folder, monkeypatch, capsys):
    def missing(name, extra):
        raise ResourceError(112, name, "is not installed", f"pip install {extra}")

    monkeypatch.chdir(folder)
    monkeypatch.setattr(module, "needed", missing)
    job = EvaluationJob("run", "last", {"parallel": ALONE}, None, None, None, worst=2)
    module.write_evaluation(job, (), Path("out"))
    assert [path.name for path in Path("out").iterdir()] == ["evaluation.json"]
    worst = json.loads(Path("out/evaluation.json").read_text())["sets"]["val"]["worst"]
    assert worst[0]["loss"] >= worst[1]["loss"]
    assert worst[0]["key"]
    assert "pip install report" in capsys.readouterr().err
