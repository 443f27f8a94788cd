import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.objective.focal import Focal

BATCH = {
    "image": torch.randn(6, 3, generator=torch.Generator().manual_seed(0)),
    "label": torch.tensor([0, 1, 2, 2, 1, 0]),
}


def loss(gamma, weights=None, batch=BATCH):
    return Focal("image", "label", gamma, weights)(nn.Identity(), batch).loss


def test_a_probable_class_counts_less():
    probabilities = BATCH["image"].softmax(1)[torch.arange(6), BATCH["label"]]
    expected = -((1 - probabilities) ** 2 * probabilities.log()).mean()
    torch.testing.assert_close(loss(2.0), expected)


def test_without_gamma_it_is_the_cross_entropy():
    expected = nn.functional.cross_entropy(BATCH["image"], BATCH["label"])
    torch.testing.assert_close(loss(0.0), expected)


def test_weights_and_shares_of_classes():
    shares = {**BATCH, "label": nn.functional.one_hot(BATCH["label"], 3).float()}
    torch.testing.assert_close(loss(2.0, [1, 2, 3], shares), loss(2.0, [1, 2, 3]))
    torch.testing.assert_close(loss(2.0, [2, 2, 2]), 2 * loss(2.0))


@pytest.mark.parametrize("weights", [[1, 2], [1, 2, 3, 4]])
def test_another_number_of_weights_than_of_classes_is_refused(weights):
    with pytest.raises(ConfigError, match=rf"C316.*length {len(weights)}, the model's output 3;"):
        loss(2.0, weights)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_record_that_is_certain_has_a_finite_gradient(gamma):
    logits = torch.tensor([[80.0, 0.0]], requires_grad=True)
    Focal("image", "label", gamma)(
        nn.Identity(), {"image": logits, "label": torch.tensor([0])}
    ).loss.backward()
    assert logits.grad.isfinite().all()


def test_a_negative_gamma_is_refused():
    with pytest.raises(ConfigError, match=r"C317.*objective.gamma = -1"):
        Focal("image", "label", -1)


def test_better_is_a_higher_accuracy_and_then_a_lower_loss():
    better = Focal("image", "label", 2.0).better
    assert better({"accuracy": 0.6, "loss": 2.0}, {"accuracy": 0.5, "loss": 1.0})
    assert not better({"accuracy": 0.5, "loss": 2.0}, {"accuracy": 0.5, "loss": 1.0})
