"""What is checked before the first step."""

import pytest
import torch
from paceline_examples.digits_net import DigitsCNN
from torch import nn

from framework.config.preflight import check_fit, check_num_steps, try_augment
from framework.contracts.training import Outcome
from framework.errors import ConfigError, UserCodeError
from framework.objective.classify import Classify
from framework.objective.own_loss import OwnLoss
from framework.order.batches import Order

CONFIG = {"model": {"_target_": "paceline_examples.digits_net.DigitsCNN"}}


def batch(channels=1):
    return {
        "index": torch.arange(2),
        "image": torch.zeros(2, channels, 8, 8),
        "label": torch.tensor([0, 9]),
    }


def test_a_model_that_fits_is_left_in_training_mode_and_unchanged():
    model = DigitsCNN(1, 10, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_fit(model, Classify("image", "label", 0.0), batch(), CONFIG)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


UNFIT = [
    (DigitsCNN(3, 10, 2), Classify("image", "label", 0.0)),  # channels
    (DigitsCNN(1, 3, 2), Classify("image", "label", 0.0)),  # classes
    (DigitsCNN(1, 10, 2), Classify("picture", "label", 0.0)),  # a field that is not there
    (DigitsCNN(1, 10, 2), Classify("label", "image", 0.0)),  # the wrong way round
]


@pytest.mark.parametrize(("model", "objective"), UNFIT)
def test_a_model_that_does_not_fit_the_data_is_reported_with_the_data_s_shapes(model, objective):
    with pytest.raises(
        ConfigError, match=r"^error\[C118\]: model = paceline_examples.*: does not fit the data's"
    ) as caught:
        check_fit(model, objective, batch(), CONFIG)
    assert "image (1, 8, 8), label ()" in str(caught.value)
    assert "set the model's keys" in str(caught.value)


def test_numbers_as_the_target_of_classes_are_answered_with_regression():
    numbers = {**batch(), "label": torch.tensor([0.5, 1.5])}
    with pytest.raises(ConfigError, match=r"C118.*; for a target of numbers choose objective=reg"):
        check_fit(DigitsCNN(1, 10, 2), Classify("image", "label", 0.0), numbers, CONFIG)


def test_a_loss_that_compares_records_with_each_other_is_refused():
    class Broadcast:
        def __call__(self, model, batch):
            loss = nn.functional.mse_loss(model(batch["image"]), batch["label"].float())
            return Outcome(loss, {}, len(batch["label"]))

    with pytest.raises(UserCodeError, match=r"Broadcast.*UserWarning: Using a target size"):
        check_fit(DigitsCNN(1, 1, 2), Broadcast(), batch(), CONFIG)
    loss = OwnLoss("image", "other", {"mse": nn.MSELoss()})
    with pytest.raises(ConfigError, match=r"C118.*UserWarning: Using a target size"):
        check_fit(DigitsCNN(1, 10, 2), loss, {**batch(), "other": torch.zeros(2, 1)}, CONFIG)


def test_an_epoch_without_a_step_is_refused():
    with pytest.raises(ConfigError, match=r"C134.*leaves nothing of 3 records"):
        check_num_steps(Order(3, 4, last="drop"), 0)
    check_num_steps(Order(4, 4), 1)


class Flipper:
    """An augmentation that draws, and needs an image of three channels."""

    num_draws = 1

    def __call__(self, batch, draws):
        assert draws is not None
        return {**batch, "image": batch["image"].expand(-1, 3, -1, -1)}


def test_an_augmentation_is_tried_as_in_training():
    config = {"augment": {"_target_": "mine.Flipper"}, "seed": 0}
    try_augment(config, Flipper(), batch(channels=1), ())
    with pytest.raises(ConfigError, match=r"C118.*augment = mine.Flipper.*image \(2, 8, 8\)"):
        try_augment(config, _NoUser(), batch(channels=2), ())


class _NoUser:
    """An augmentation whose error comes from torch itself."""

    num_draws = 1
    __call__ = staticmethod(torch.Tensor.expand)


def test_a_trial_gives_the_names_and_the_predictions_of_a_validation():
    batch = {"image": torch.rand(4, 1, 8, 8), "label": torch.arange(4)}
    model = DigitsCNN(in_channels=1, num_classes=10, width=8)
    trial = check_fit(model, Classify("image", "label", 0.0), batch, {})
    assert list(trial.means) == ["loss", "accuracy"]
    assert trial.predictions[0].shape == (4, 10)
