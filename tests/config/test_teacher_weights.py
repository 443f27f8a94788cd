import pytest
import torch
from torch import nn

from framework.config.teacher_weights import load_teacher
from framework.errors import CheckpointError, ConfigError
from framework.objective.distill import Distill


def distill(teacher, weights="teacher.pt"):
    return Distill("image", "label", teacher, weights, 0.5, 1.0)


@pytest.fixture
def teacher(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(2, 3)
    torch.save(model.state_dict(), "teacher.pt")
    return model


def test_a_teacher_gets_its_weights(teacher):
    objective = distill(nn.Linear(2, 3))
    load_teacher(objective)
    assert torch.equal(objective.teacher.weight, teacher.weight)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(2, 4), r"has weight of the shape \[3, 2\], not \[4, 2\], and 1 more"),
        (nn.Linear(2, 3, bias=False), "has bias, which the teacher has not"),
        (nn.Sequential(nn.Linear(2, 3)), "lacks 0.weight, and 3 more"),
    ],
)
def test_the_weights_of_another_model_are_refused(teacher, model, words):
    with pytest.raises(ConfigError, match=f"C319.*objective.weights = teacher.pt: {words}"):
        load_teacher(distill(model))


def test_a_file_that_is_not_there_is_refused(teacher):
    with pytest.raises(CheckpointError, match=r"nothing\.pt"):
        load_teacher(distill(nn.Linear(2, 3), "nothing.pt"))
