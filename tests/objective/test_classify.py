import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.objective.classify import Classify

LOGITS = torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 4.0, 0.0], [1.0, 2.0, 3.0]])
BATCH = {"image": LOGITS, "label": torch.tensor([0, 1, 2, 2])}


def classify(label_smoothing=0.0):
    return Classify("image", "label", label_smoothing)


def test_the_loss_is_the_mean_cross_entropy():
    expected = -torch.log_softmax(LOGITS, 1)[torch.arange(4), BATCH["label"]].mean()
    torch.testing.assert_close(classify()(nn.Identity(), BATCH).loss, expected)


def test_what_is_counted_is_how_many_are_right():
    outcome = classify()(nn.Identity(), BATCH)
    assert (int(outcome.sums["accuracy"].sum()), outcome.count) == (3, 4)


def test_smoothing_moves_a_share_of_the_target_to_all_classes():
    log_probabilities = torch.log_softmax(LOGITS, 1)
    hard = -log_probabilities[torch.arange(4), BATCH["label"]].mean()
    expected = 0.7 * hard - 0.3 * log_probabilities.mean()
    torch.testing.assert_close(classify(0.3)(nn.Identity(), BATCH).loss, expected)


def test_fields_are_found_by_their_names():
    renamed = {"x": BATCH["image"], "y": BATCH["label"]}
    assert int(Classify("x", "y", 0.0)(nn.Identity(), renamed).sums["accuracy"].sum()) == 3
    with pytest.raises(KeyError):
        classify()(nn.Identity(), renamed)


def test_the_loss_has_a_gradient_and_the_counts_have_none():
    outcome = classify()(nn.Linear(3, 3), BATCH)
    assert outcome.loss.requires_grad
    assert not outcome.sums["accuracy"].requires_grad


@pytest.mark.parametrize(
    ("new", "old", "better"),
    [
        ((0.9, 2.0), (0.8, 1.0), True),
        ((0.8, 1.0), (0.9, 2.0), False),
        ((0.9, 1.0), (0.9, 2.0), True),
        ((0.9, 1.0), (0.9, 1.0), False),
    ],
)
def test_better_is_more_accurate_and_then_a_lower_loss(new, old, better):
    results = [{"accuracy": accuracy, "loss": loss} for accuracy, loss in (new, old)]
    assert classify().better(*results) is better


def test_shares_of_classes_are_learned_and_the_largest_counts():
    shares = torch.tensor([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [0.0, 0.3, 0.7], [0.0, 0.0, 1.0]])
    outcome = classify()(nn.Identity(), {"image": LOGITS, "label": shares})
    expected = -(torch.log_softmax(LOGITS, 1) * shares).sum(1).mean()
    torch.testing.assert_close(outcome.loss, expected)
    assert int(outcome.sums["accuracy"].sum()) == 3


def test_whole_shares_are_the_same_as_classes():
    whole = {**BATCH, "label": nn.functional.one_hot(BATCH["label"], 3).float()}
    for smoothing in (0.0, 0.3):
        by_class, by_share = (classify(smoothing)(nn.Identity(), batch) for batch in (BATCH, whole))
        torch.testing.assert_close(by_class.loss, by_share.loss)
        assert torch.equal(by_class.sums["accuracy"], by_share.sums["accuracy"])


def test_of_label_maps_the_share_of_each_record_s_pixels_is_counted():
    logits = torch.tensor([[[4.0, 0.0], [0.0, 4.0]], [[4.0, 4.0], [0.0, 0.0]]]).permute(1, 0, 2)[
        :, :, None
    ]
    outcome = classify()(nn.Identity(), {"image": logits, "label": logits.argmax(1)})
    assert (outcome.sums["accuracy"].tolist(), outcome.count) == ([1.0, 1.0], 2)


def test_a_model_may_take_several_fields():
    class Scaled(nn.Module):
        def forward(self, image, scale):
            return image * scale

    batch = {**BATCH, "scale": torch.tensor([[1.0], [1.0], [-1.0], [1.0]])}
    outcome = Classify(["image", "scale"], "label", 0.0)(Scaled(), batch)
    assert outcome.sums["accuracy"].tolist() == [True, True, False, True]


def test_of_several_fields_there_is_no_view():
    with pytest.raises(ConfigError, match=r"C277.*several fields"):
        Classify(["image", "scale"], "label", 0.0, tta="mirror")


def test_predictions_are_probabilities_and_classes_and_only_of_evaluation():
    model = nn.Linear(2, 3)
    batch = {"x": torch.randn(4, 2), "y": torch.tensor([0, 1, 2, 1])}
    assert Classify("x", "y", 0.0)(model, batch).predictions is None
    guess, target = Classify("x", "y", 0.0)(model.eval(), batch).predictions
    assert torch.allclose(guess, model(batch["x"]).softmax(1))
    assert target.tolist() == [0, 1, 2, 1]
