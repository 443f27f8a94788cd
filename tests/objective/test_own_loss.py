import pytest
import torch
from torch import nn

from framework.config.build import build
from framework.errors import ConfigError
from framework.objective.own_loss import OwnLoss

BATCH = {"x": torch.randn(6, 4), "y": torch.randn(6, 2), "z": torch.ones(6, 2)}
MODEL = nn.Linear(4, 2)


def test_the_loss_is_that_of_the_users_class():
    block = {
        "_target_": "framework.objective.own_loss.OwnLoss",
        "input": "x",
        "target": "y",
        "losses": {"huber": {"_target_": "torch.nn.HuberLoss", "delta": 0.5}},
        "weights": {},
    }
    outcome = build("objective", block, ())(MODEL, BATCH)
    assert torch.equal(outcome.loss, nn.HuberLoss(delta=0.5)(MODEL(BATCH["x"]), BATCH["y"]))
    assert outcome.count == 6
    assert outcome.losses == {}


def test_several_losses_are_weighted_and_named():
    losses = {"l1": nn.L1Loss(), "l2": nn.MSELoss()}
    outcome = OwnLoss("x", "y", losses, {"l2": 0.25})(MODEL, BATCH)
    output = MODEL(BATCH["x"])
    l1, l2 = nn.L1Loss()(output, BATCH["y"]), nn.MSELoss()(output, BATCH["y"])
    torch.testing.assert_close(outcome.loss, l1 + 0.25 * l2)
    assert outcome.losses == {"l1": l1, "l2": l2}


def test_a_value_for_each_record_is_averaged():
    outcome = OwnLoss("x", "y", {"l1": nn.L1Loss(reduction="none")})(MODEL, BATCH)
    torch.testing.assert_close(outcome.loss, nn.L1Loss()(MODEL(BATCH["x"]), BATCH["y"]))


def test_one_number_of_a_model_is_compared_record_by_record():
    batch = {"x": BATCH["x"], "age": torch.arange(6.0)}
    model = nn.Linear(4, 1)
    outcome = OwnLoss("x", "age", {"l1": nn.L1Loss()})(model, batch)
    expected = (model(batch["x"])[:, 0] - batch["age"]).abs().mean()
    torch.testing.assert_close(outcome.loss, expected)


def test_a_loss_may_take_several_fields():
    objective = OwnLoss("x", ["y", "z"], {"own": lambda out, y, z: ((out - y) * z).abs().mean()})
    torch.testing.assert_close(
        objective(MODEL, BATCH).loss, nn.L1Loss()(MODEL(BATCH["x"]), BATCH["y"])
    )


def test_label_maps_are_compared_with_probabilities_in_validation():
    batch = {"x": torch.randn(3, 2, 4, 4), "mask": torch.randint(2, (3, 1, 4, 4)).byte()}
    losses = {"own": lambda output, mask: output.mean()}
    objective = OwnLoss("x", "mask", losses, predicts="classes")
    model = nn.Identity()
    assert objective(model, batch).predictions is None
    guess, target = objective(model.eval(), batch).predictions
    assert torch.equal(guess, batch["x"].softmax(1))
    assert torch.equal(target, batch["mask"].squeeze(1).long())


def test_numbers_are_compared_as_they_are_in_validation():
    output, target = OwnLoss("x", "y", {"l1": nn.L1Loss()})(MODEL.eval(), BATCH).predictions
    MODEL.train()
    assert torch.equal(output, MODEL(BATCH["x"]))
    assert torch.equal(target, BATCH["y"])


@pytest.mark.parametrize("predicts", ["classes", "numbers"])
@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_one_number_per_record_is_no_class_for_whole_numbers_as_target(shape, predicts):
    batch = {"x": torch.randn(shape), "count": torch.randint(9, shape)}
    objective = OwnLoss("x", "count", {"own": nn.PoissonNLLLoss()}, predicts=predicts)
    model = nn.Identity().eval()
    output, target = objective(model, batch).predictions
    assert torch.equal(output, batch["x"])
    assert torch.equal(target, batch["count"])
    assert torch.equal(objective.predict(model, batch).values, batch["x"])


def test_several_numbers_are_compared_as_they_are_with_a_whole_number():
    batch = {"x": torch.randn(6, 3), "count": torch.randint(9, (6,))}
    losses = {"own": lambda output, count: (output - count.unsqueeze(1)).abs().mean()}
    output, target = OwnLoss("x", "count", losses)(nn.Identity().eval(), batch).predictions
    assert torch.equal(output, batch["x"])
    assert torch.equal(target, batch["count"])


def test_a_lower_loss_is_better():
    objective = OwnLoss("x", "y", {"l1": nn.L1Loss()})
    assert objective.better({"loss": 1.0}, {"loss": 2.0})
    assert not objective.better({"loss": 2.0}, {"loss": 2.0})


@pytest.mark.parametrize(
    ("losses", "weights", "words"),
    [
        ({}, None, "must have one or more losses"),
        ("huber", None, "must have one or more losses"),
        ({"huber": "torch.nn.HuberLoss"}, None, "losses.huber = torch.nn.HuberLoss: cannot be cal"),
        ({"own": nn.Linear(2, 2)}, None, "Linear has parameters"),
        ({"l1": nn.L1Loss()}, {"l2": 1.0}, "weights.l2 = 1.0: is the weight of no loss"),
        ({"l1": nn.L1Loss()}, {"l1": "much"}, "must be a number"),
        ({"l1": nn.L1Loss()}, {"l1": float("nan")}, "must be finite"),
        ({"l1": nn.L1Loss()}, [1.0], "must be numbers by the name"),
    ],
)
def test_impossible_losses_are_refused(losses, weights, words):
    with pytest.raises(ConfigError, match=rf"C390.*{words}"):
        OwnLoss("x", "y", losses, weights)


def test_a_loss_that_returns_no_tensor_is_named():
    with pytest.raises(ValueError, match="the loss own returned a float"):
        OwnLoss("x", "y", {"own": lambda output, target: 1.0})(MODEL, BATCH)


def test_logits_become_probabilities_if_classes_are_predicted():
    objective = OwnLoss("x", ["y", "z"], {"l1": nn.L1Loss()}, predicts="classes")
    predicted = objective.predict(MODEL, {"x": BATCH["x"]})
    torch.testing.assert_close(predicted.values, MODEL(BATCH["x"]).softmax(1))
    assert (objective.inputs, objective.target) == (["x"], "y")


def test_numbers_are_predicted_as_they_are():
    predicted = OwnLoss("x", "y", {"l1": nn.L1Loss()}).predict(MODEL, {"x": BATCH["x"]})
    assert torch.equal(predicted.values, MODEL(BATCH["x"]))


def test_nothing_else_is_predicted():
    with pytest.raises(ConfigError, match=r"C390.*choose classes or numbers"):
        OwnLoss("x", "y", {"l1": nn.L1Loss()}, predicts="boxes")
