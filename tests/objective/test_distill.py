import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.objective.distill import Distill

BATCH = {
    "image": torch.randn(6, 4, generator=torch.Generator().manual_seed(0)),
    "label": torch.tensor([0, 1, 2, 2, 1, 0]),
}


def net(seed, outputs=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, outputs), nn.BatchNorm1d(outputs))


def distill(share=0.5, temperature=2.0, teacher=None):
    return Distill("image", "label", teacher or net(1), None, share, temperature)


def test_the_loss_is_made_of_labels_and_teacher_which_are_both_named():
    objective, student = distill(0.25), net(0)
    outcome = objective(student, BATCH)
    logits, taught = student(BATCH["image"]), objective.teacher(BATCH["image"])
    of_labels = nn.functional.cross_entropy(logits, BATCH["label"])
    wanted = (taught / 2).softmax(1)
    of_teacher = 4 * (wanted * (wanted.log() - (logits / 2).log_softmax(1))).sum(1).mean()
    torch.testing.assert_close(outcome.losses["labels"], of_labels)
    torch.testing.assert_close(outcome.losses["teacher"], of_teacher)
    torch.testing.assert_close(outcome.loss, 0.75 * of_labels + 0.25 * of_teacher)


def test_a_teacher_learns_nothing():
    objective = distill()
    before = {name: value.clone() for name, value in objective.teacher.state_dict().items()}
    objective(net(0), BATCH).loss.backward()
    assert not objective.teacher.training
    assert all(weight.grad is None for weight in objective.teacher.parameters())
    after = objective.teacher.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it():
    teacher = net(1)
    loss = distill(1.0, teacher=teacher)(teacher, BATCH).loss
    assert loss.item() == pytest.approx(0, abs=1e-6)


def test_logits_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"gives \(6, 3\), the teacher \(6, 2\)"):
        distill(teacher=net(1, 2))(net(0), BATCH)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"share": 2}, "objective.share = 2"),
        ({"temperature": 0}, "objective.temperature = 0"),
        ({"teacher": "resnet"}, "objective.teacher = resnet: is not a model"),
    ],
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(ConfigError, match=f"C319.*{words}"):
        distill(**changes)


def test_better_is_a_higher_accuracy_and_then_a_lower_loss():
    better = distill().better
    assert better({"accuracy": 0.6, "loss": 2.0}, {"accuracy": 0.5, "loss": 1.0})
    assert not better({"accuracy": 0.5, "loss": 1.0}, {"accuracy": 0.5, "loss": 1.0})
