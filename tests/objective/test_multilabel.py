import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

from framework.errors import ConfigError
from framework.objective.multilabel import Multilabel
from framework.train.metrics import Tally

RANDOM = torch.Generator().manual_seed(0)
BATCH = {
    "image": torch.randn(9, 4, generator=RANDOM),
    "labels": torch.randint(0, 2, (9, 4), generator=RANDOM, dtype=torch.uint8),
}


def means(batch=BATCH, cuts=(9,)):
    """Return the loss and the metrics over batches that are cut to the sizes ``cuts``."""
    objective = Multilabel("image", "labels")
    tally = Tally(objective)
    for part in zip(*(values.split(list(cuts)) for values in batch.values()), strict=True):
        outcome = objective(nn.Identity(), dict(zip(batch, part, strict=True)))
        tally.add(outcome, True, 1, None)
    return tally.means(lambda sums: sums)[0]


def test_the_loss_is_the_mean_binary_cross_entropy():
    guess = BATCH["image"].sigmoid().double()
    truth = BATCH["labels"].double()
    expected = -(truth * guess.log() + (1 - truth) * (1 - guess).log()).mean()
    assert means()["loss"] == pytest.approx(expected.item(), rel=1e-6)


def test_f1_and_accuracy_are_those_of_scikit_learn_over_any_batches():
    guess = (BATCH["image"] > 0).numpy()
    expected = f1_score(BATCH["labels"].numpy(), guess, average="micro")
    for cuts in ((9,), (1, 8), (4, 4, 1)):
        assert means(cuts=cuts)["f1"] == pytest.approx(expected, abs=1e-12)
        right = (guess == BATCH["labels"].numpy()).mean()
        assert means(cuts=cuts)["accuracy"] == pytest.approx(right, rel=1e-6)


def test_a_label_may_weigh_more_if_wanted():
    losses = [
        Multilabel("image", "labels", weights)(nn.Identity(), BATCH).loss
        for weights in (None, [1, 1, 1, 1], [3, 1, 1, 1])
    ]
    assert losses[0] == losses[1] < losses[2]


@pytest.mark.parametrize("weights", [[2], [1, 2, 3, 4, 5]])
def test_another_number_of_weights_than_of_labels_is_refused(weights):
    with pytest.raises(ConfigError, match=rf"C316.*length {len(weights)}, the model's output 4;"):
        Multilabel("image", "labels", weights)(nn.Identity(), BATCH)


def test_another_number_of_labels_is_refused():
    with pytest.raises(ValueError, match=r"the model gives \(9, 4\), labels is \(9, 3\)"):
        means({**BATCH, "labels": BATCH["labels"][:, :3]})


def test_no_label_at_all_has_no_f1():
    nothing = {"image": -torch.ones(2, 4), "labels": torch.zeros(2, 4)}
    assert means(nothing, (2,))["f1"] == 0


def test_better_is_a_higher_f1_and_then_a_lower_loss():
    better = Multilabel("image", "labels").better
    assert better({"f1": 0.6, "loss": 2.0}, {"f1": 0.5, "loss": 1.0})
    assert not better({"f1": 0.5, "loss": 1.0}, {"f1": 0.5, "loss": 1.0})
