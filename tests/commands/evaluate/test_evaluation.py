"""An evaluation of a saved run: its means, and what is found on the way."""

import json
import re
from pathlib import Path

import cv2
import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from framework.commands.evaluate import evaluation
from framework.commands.evaluate import evaluation as module
from framework.config.saved_run import ALONE
from framework.contracts.prediction import ClassProbabilities, PredictedMaps, PredictedTexts
from framework.errors import ResourceError
from framework.objective.classify import Classify
from tests.saved_runs import digits_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    digits_run(folder, "max_steps=3")
    return folder


def job(worst=5):
    return evaluation.EvaluationJob("run", "last", {"parallel": ALONE}, None, None, None, worst)


def evaluated(folder, worst=5):
    folder.mkdir()
    evaluation.write_evaluation(job(worst), (), folder)
    return json.loads((folder / "evaluation.json").read_text())["sets"]["val"]


def test_the_worst_records_have_the_highest_losses(made, monkeypatch, tmp_path):
    monkeypatch.chdir(made)
    few = evaluated(tmp_path / "few")
    every = evaluated(tmp_path / "every", worst=360)
    losses = [record["loss"] for record in every["worst"]]
    assert losses == sorted(losses, reverse=True)
    assert few["worst"] == every["worst"][:5]
    assert sum(losses) / 360 == pytest.approx(few["means"]["loss"], rel=1e-5)


def test_an_objective_that_needs_whole_batches_costs_the_page_only(
    made, monkeypatch, tmp_path, capsys
):
    def refuse(self, model, batch):
        if len(batch["label"]) == 1:
            raise ValueError("too few")
        return call(self, model, batch)

    call = Classify.__call__
    monkeypatch.chdir(made)
    monkeypatch.setattr(Classify, "__call__", refuse)
    val_figures = evaluated(tmp_path / "out")
    assert val_figures["worst"] == []
    assert "ValueError: too few" in capsys.readouterr().err
    assert torch.tensor(val_figures["confusion"]).sum() == 360


def test_without_the_extra_the_figures_are_written_alone(made, monkeypatch, tmp_path, capsys):
    def missing(name, extra):
        raise ResourceError(112, name, "is not installed", f"pip install {extra}")

    monkeypatch.chdir(made)
    monkeypatch.setattr(module, "needed", missing)
    worst = evaluated(tmp_path / "out", 2)["worst"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["evaluation.json"]
    assert worst[0]["loss"] >= worst[1]["loss"]
    assert worst[0]["key"]
    assert "pip install report" in capsys.readouterr().err


def test_counts_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(200, 4, generator=generator)
    target = torch.randint(0, 4, (200,), generator=generator)
    counts = evaluation.counted(ClassProbabilities(probabilities), target)
    guess = probabilities.argmax(1)
    assert counts.tolist() == confusion_matrix(target, guess).tolist()
    figures = evaluation.class_figures(counts, ["a", "b", "c"])
    expected = precision_recall_fscore_support(target, guess)
    for row, precision, recall, f1, count in zip(figures, *expected, strict=True):
        assert (row["precision"], row["recall"], row["f1"]) == pytest.approx(
            (precision, recall, f1)
        )
        assert row["count"] == count
    assert [row["name"] for row in figures] == ["a", "b", "c", "3"]


def test_pixels_without_a_class_do_not_count():
    maps = PredictedMaps(torch.tensor([[[0, 1], [1, 1]]], dtype=torch.uint8))
    target = torch.tensor([[[[0, 0], [1, 255]]]], dtype=torch.uint8)
    assert evaluation.trimmed(evaluation.counted(maps, target), 0).tolist() == [[1, 1], [0, 1]]


def test_a_class_that_neither_occurs_nor_is_guessed_has_no_figures():
    figures = evaluation.class_figures(torch.tensor([[2.0, 0], [0, 0]]), [])
    assert figures[1]["f1"] is None
    assert figures[1]["iou"] is None
    assert figures[0]["iou"] == 1


def test_predictions_that_are_no_classes_are_not_counted():
    assert evaluation.counted(PredictedTexts(["a"]), torch.zeros(1)) is None
    assert evaluation.counted(ClassProbabilities(torch.rand(2, 3)), torch.rand(2)) is None


def test_foreign_texts_are_escaped():
    facts = [("key", "<script>alert(1)</script>")]
    record = {"pictures": [("image", "data:image/png;base64,AA==")], "facts": facts}
    shown = {"name": "val", "data": "v.h5", "records": 3, "means": [], "worst": [record]}
    page = evaluation.worst_page([shown], "run", "best")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert re.search(r'<img src="data:image/png', page)


@pytest.mark.parametrize("number", [1, 3, 60])
def test_a_picture_is_made_of_any_number_of_classes(number):
    counts = [[int(row == column) for column in range(number)] for row in range(number)]
    evaluation.write_confusion(Path("c.png"), counts, [f"long name $x$ {n}" for n in range(number)])
    assert cv2.imread("c.png").shape[0] > 300
