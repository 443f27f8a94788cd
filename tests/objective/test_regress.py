import re
from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import r2_score
from torch import nn

from framework.errors import ConfigError
from framework.objective.regress import Regress
from framework.train.metrics import Tally

GUESS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
BATCH = {"image": GUESS, "target": torch.tensor([[1.0, 4.0], [0.0, 4.0]])}  # off by 0, 2, 3, 0


def regress(loss="mse"):
    return Regress("image", "target", loss)


@pytest.mark.parametrize(("loss", "expected"), [("mse", (4 + 9) / 4), ("l1", (2 + 3) / 4)])
def test_the_loss_is_the_mean_error(loss, expected):
    assert float(regress(loss)(nn.Identity(), BATCH).loss) == expected


def test_what_is_counted_is_each_record_s_mean_absolute_error():
    outcome = regress()(nn.Identity(), BATCH)
    assert (float(outcome.sums["mae"]), outcome.count) == (2 / 2 + 3 / 2, 2)


def test_numbers_without_a_dimension_of_their_own_are_counted_too():
    outcome = regress("l1")(
        nn.Identity(), {"image": torch.tensor([1.0, 5.0]), "target": torch.tensor([2.0, 2.0])}
    )
    assert (float(outcome.loss), float(outcome.sums["mae"]), outcome.count) == (2.0, 4.0, 2)


def test_images_are_counted_per_record():
    images = {"image": torch.zeros(2, 3, 4, 4), "target": torch.full((2, 3, 4, 4), 0.5)}
    assert float(regress()(nn.Identity(), images).sums["mae"]) == 1.0


def test_half_precision_guesses_are_compared_in_single():
    outcome = regress()(nn.Identity(), {"image": GUESS.bfloat16(), "target": BATCH["target"]})
    assert (outcome.loss.dtype, float(outcome.loss)) == (torch.float32, 13 / 4)


def test_half_precision_errors_of_plain_numbers_are_summed_in_single():
    guess, target = (
        torch.ones(3001).half(),
        torch.zeros(3001).half(),
    )  # 3001 is no number in 16 bits
    outcome = regress()(nn.Identity(), {"image": guess, "target": target})
    assert float(outcome.sums["mae"]) == 3001.0


@pytest.mark.parametrize(
    ("guess", "target"), [((2, 2), (2,)), ((2,), (2, 1)), ((2, 1, 1), (2,)), ((2, 1), (2, 2))]
)
def test_shapes_that_differ_are_refused_where_torch_would_broadcast(guess, target):
    batch = {"image": torch.zeros(guess), "target": torch.zeros(target)}
    with pytest.raises(ValueError, match=rf"the model gives {re.escape(str(guess))}, target is "):
        regress()(nn.Identity(), batch)


def test_a_model_that_gives_one_number_in_a_dimension_of_its_own_is_compared_record_by_record():
    batch = {"image": torch.tensor([[1.0], [5.0]]), "target": torch.tensor([2.0, 2.0])}
    outcome = regress("l1")(nn.Identity(), batch)
    assert (float(outcome.loss), float(outcome.sums["mae"]), outcome.count) == (2.0, 4.0, 2)
    guess, target = outcome.predictions
    assert guess.shape == target.shape == (2,)


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3)])
@pytest.mark.parametrize("mean", [0.0, 2000.0])
def test_the_share_of_explained_variance_is_that_of_scikit_learn_over_uneven_batches(shape, mean):
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(shape, generator=generator) * 10 + mean
    guess = target + torch.randn(shape, generator=generator) * 4
    objective = regress()
    tally = Tally(objective)
    model = nn.Identity().eval()
    for part in (slice(0, 16), slice(16, 32), slice(32, 40)):
        outcome = objective(model, {"image": guess[part], "target": target[part]})
        tally.add(outcome, True, 0, None)
    means, _ = tally.means(lambda sums: sums)
    assert means["r2"] == pytest.approx(r2_score(target.double(), guess.double()), abs=1e-6)


@pytest.mark.parametrize(("guess", "share"), [([3.0, 3.0], 1.0), ([3.0, 4.0], 0.0)])
def test_a_constant_target_is_explained_by_right_guesses_alone(guess, share):
    batch = {"image": torch.tensor(guess), "target": torch.tensor([3.0, 3.0])}
    outcome = regress()(nn.Identity().eval(), batch)
    assert regress().metrics(outcome.totals) == {"r2": share}


@pytest.mark.parametrize(("training", "shape"), [(True, (2,)), (False, (2, 3, 4))])
def test_steps_and_images_have_no_share_of_explained_variance(training, shape):
    batch = {"image": torch.ones(shape), "target": torch.ones(shape)}
    assert not regress()(nn.Identity().train(training), batch).totals


def test_the_loss_has_a_gradient_and_the_counts_have_none():
    outcome = regress()(nn.Linear(2, 2), BATCH)
    assert outcome.loss.requires_grad
    assert not outcome.sums["mae"].requires_grad


def test_an_output_with_logits_is_predicted_too():
    predicted = regress().predict(lambda image: SimpleNamespace(logits=image), BATCH)
    assert torch.equal(predicted.values, GUESS)


def test_better_is_a_lower_loss():
    assert regress().better({"loss": 1.0}, {"loss": 2.0})
    assert not regress().better({"loss": 2.0}, {"loss": 2.0})
    assert not regress().better({"loss": 2.0, "r2": 0.5}, {"loss": 1.0, "r2": 0.1})


def test_an_unknown_loss_is_named():
    with pytest.raises(
        ConfigError, match=r"^error\[C111\]: objective.loss = huber: not a loss; choose mse or l1$"
    ):
        regress("huber")
