"""Objectives of numbers and images, and those of the user: losses, metrics and refusals."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import r2_score
from torch import nn

from framework.config.build import build
from framework.objective.own_loss import OwnLoss
from framework.objective.regress import Regress
from framework.objective.restore import Restore
from framework.objective.scores import for_target, prediction
from framework.train.metrics import PassPlace, PassResults

MODEL = nn.Identity()


def test_the_prediction_of_other_libraries_models_is_found_in_their_output():
    logits, boxes = torch.ones(2, 3), [torch.ones(1, 4)]
    assert prediction(logits) is logits
    assert prediction(SimpleNamespace(logits=logits)) is logits
    assert prediction({"out": logits, "aux": None}) is logits
    assert prediction(boxes) is for_target(boxes, torch.zeros(1)) is boxes


@pytest.mark.parametrize(
    ("output", "target", "expected"),
    [
        *(((3, 1), (3,), (3,)), ((1, 1), (1,), (1,)), ((3,), (3,), (3,)), ((3, 1), (3, 1), (3, 1))),
        *(((3, 2), (3,), (3, 2)), ((3, 1, 1), (3,), (3, 1, 1))),
        ((2, 1), (3,), (2, 1)),  # a target of another number of records
    ],
)
def test_only_one_number_per_record_loses_its_dimension(output, target, expected):
    assert for_target(torch.zeros(output), torch.zeros(target)).shape == expected


GUESS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
TARGET = torch.tensor([[1.0, 4.0], [0.0, 4.0]])  # off by 0, 2, 3, 0


def regress(guess=GUESS, target=TARGET, loss="mse", model=MODEL):
    return Regress("image", "target", loss)(model, {"image": guess, "target": target})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("loss", "expected"), [("mse", (4 + 9) / 4), ("l1", (2 + 3) / 4)])
def test_the_loss_is_the_mean_error_and_mae_that_of_each_record(loss, expected, dtype):
    outcome = regress(GUESS.to(dtype), loss=loss)
    assert (outcome.loss.dtype, float(outcome.loss)) == (torch.float32, expected)
    assert float(outcome.sums["mae"]) == 2 / 2 + 3 / 2


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_plain_numbers_are_compared_record_by_record(shape):
    guess = torch.tensor([1.0, 5.0]).view(shape)
    outcome = regress(guess, torch.tensor([2.0, 2.0]), "l1")
    assert (float(outcome.loss), float(outcome.sums["mae"])) == (2.0, 4.0)


def test_half_precision_errors_are_summed_in_single():
    outcome = regress(torch.ones(3001).half(), torch.zeros(3001).half())
    assert float(outcome.sums["mae"]) == 3001.0  # no number in 16 bits


@pytest.mark.parametrize(
    ("guess", "target"), [((2, 2), (2,)), ((2,), (2, 1)), ((2, 1, 1), (2,)), ((2, 1), (2, 2))]
)
def test_shapes_that_differ_are_refused_where_torch_would_broadcast(guess, target):
    with pytest.raises(ValueError, match=rf"the model gives {re.escape(str(guess))}, target is "):
        regress(torch.zeros(guess), torch.zeros(target))


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3)])
@pytest.mark.parametrize("mean", [0.0, 2000.0])
def test_explained_variance_is_that_of_scikit_learn_over_uneven_batches(shape, mean):
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(shape, generator=generator) * 10 + mean
    guess = target + torch.randn(shape, generator=generator) * 4
    pass_results = PassResults(Regress("image", "target", "mse"))
    for part in (slice(0, 16), slice(16, 32), slice(32, 40)):
        result = regress(guess[part], target[part], model=nn.Identity().eval())
        pass_results.add(result, len(guess[part]), 1.0, PassPlace(0, None))
    means = pass_results.results(lambda sums: sums).means
    assert means["r2"] == pytest.approx(r2_score(target.double(), guess.double()), abs=1e-6)


@pytest.mark.parametrize(("guess", "share"), [([3.0, 3.0], 1.0), ([3.0, 4.0], 0.0)])
def test_a_constant_target_is_explained_by_right_guesses_alone(guess, share):
    target = torch.tensor([3.0, 3.0])
    outcome = regress(torch.tensor(guess), target, model=nn.Identity().eval())
    assert Regress("image", "target", "mse").metrics(outcome.totals) == {"r2": share}


@pytest.mark.parametrize(("training", "shape"), [(True, (2,)), (False, (2, 3, 4))])
def test_steps_and_images_have_no_explained_variance(training, shape):
    values = torch.ones(shape)
    assert not regress(values, values, model=nn.Identity().train(training)).totals


SHARP = torch.full((2, 3, 4, 4), 0.5)
BLURRY = SHARP + torch.tensor([0.1, 0.01]).view(2, 1, 1, 1)  # errors of 20 and 40 dB


def restore(blurry=BLURRY, sharp=SHARP, loss="l1", peak=1.0, model=MODEL):
    return Restore("blurry", "sharp", loss, peak)(model, {"blurry": blurry, "sharp": sharp})


@pytest.mark.parametrize(("loss", "expected"), [("l1", (0.1 + 0.01) / 2), ("mse", 0.0101 / 2)])
def test_the_loss_is_the_mean_error_and_psnr_is_counted_image_by_image(loss, expected):
    outcome = restore(loss=loss)
    assert float(outcome.loss) == pytest.approx(expected, rel=1e-4)
    assert outcome.sums["psnr"].tolist() == pytest.approx([20, 40], abs=1e-3)
    assert outcome.sums["input_psnr"].tolist() == pytest.approx([20, 40], abs=1e-3)


def test_bytes_are_taken_as_parts_of_255():
    black = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    outcome = restore(black, 255 - black)
    assert (float(outcome.loss), float(outcome.sums["psnr"])) == (1, 0)


def test_values_beyond_the_peak_are_cut_for_the_psnr_but_learned_from():
    outcome = restore(torch.full((1, 4), 3.0), torch.full((1, 4), 2.0), peak=2.0)
    assert (float(outcome.loss), float(outcome.sums["psnr"])) == (1, 100)
    assert float(outcome.sums["input_psnr"]) == pytest.approx(10 * math.log10(4), abs=1e-4)


def test_a_smaller_input_has_no_psnr_of_its_own():
    model = nn.Upsample(scale_factor=2)
    outcome = restore(torch.rand(1, 3, 2, 2), torch.rand(1, 3, 4, 4), model=model)
    assert outcome.sums.keys() == {"psnr"}


def test_half_precision_images_are_compared_in_single():
    outcome = restore(BLURRY.bfloat16(), model=nn.Identity().bfloat16())
    assert outcome.loss.dtype == outcome.sums["psnr"].dtype == torch.float32


def test_images_of_other_shapes_are_refused_where_torch_would_broadcast():
    what = r"the model gives \(1, 3, 2, 2\), sharp is \(1, 1, 2, 2\)"
    with pytest.raises(ValueError, match=what):
        restore(torch.rand(1, 3, 2, 2), torch.rand(1, 1, 2, 2))


BATCH = {"x": torch.randn(6, 4), "y": torch.randn(6, 2), "z": torch.ones(6, 2)}
NET = nn.Linear(4, 2)


def own_loss(losses, target="y", weights=None, model=NET, batch=BATCH, **options):
    return OwnLoss("x", target, losses, weights, **options)(model, batch)


def test_the_loss_is_that_of_the_user_s_class():
    block = {
        "_target_": "framework.objective.own_loss.OwnLoss",
        "input": "x",
        "target": "y",
        "losses": {"huber": {"_target_": "torch.nn.HuberLoss", "delta": 0.5}},
        "weights": {},
    }
    outcome = build("objective", block, ())(NET, BATCH)
    assert torch.equal(outcome.loss, nn.HuberLoss(delta=0.5)(NET(BATCH["x"]), BATCH["y"]))
    assert outcome.losses == {}


def test_several_losses_are_weighted_and_named():
    outcome = own_loss({"l1": nn.L1Loss(), "l2": nn.MSELoss()}, weights={"l2": 0.25})
    output = NET(BATCH["x"])
    l1, l2 = nn.L1Loss()(output, BATCH["y"]), nn.MSELoss()(output, BATCH["y"])
    torch.testing.assert_close(outcome.loss, l1 + 0.25 * l2)
    assert outcome.losses == {"l1": l1, "l2": l2}


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        pytest.param(nn.L1Loss(reduction="none"), "y", id="a value for each record"),
        pytest.param(
            lambda out, y, z: ((out - y) * z).abs().mean(), ["y", "z"], id="of several fields"
        ),
    ],
)
def test_a_loss_may_have_another_form(loss, target):
    expected = nn.L1Loss()(NET(BATCH["x"]), BATCH["y"])
    torch.testing.assert_close(own_loss({"own": loss}, target).loss, expected)


def test_label_maps_are_compared_with_probabilities_in_validation():
    batch = {"x": torch.randn(3, 2, 4, 4), "y": torch.randint(2, (3, 1, 4, 4)).byte()}
    losses = {"own": lambda output, mask: output.mean()}
    run = {"losses": losses, "batch": batch, "predicts": "classes"}
    assert own_loss(model=nn.Identity(), **run).predictions is None
    guess, target = own_loss(model=nn.Identity().eval(), **run).predictions
    assert torch.equal(guess, batch["x"].softmax(1))
    assert torch.equal(target, batch["y"].squeeze(1).long())


CE = nn.CrossEntropyLoss
LABELS = {"x": torch.randn(6, 4), "y": torch.tensor([0, -100, 1, 1, -100, 0])}


def test_losses_that_ignore_the_same_labels_share_their_count():
    losses = {"plain": CE(), "smooth": CE(label_smoothing=0.1)}
    objective = OwnLoss("x", "y", losses, predicts="classes")
    outcome = objective(nn.Linear(4, 2).eval(), LABELS)
    assert objective.unknown_mean is None
    assert outcome.count == 4
    guess, target = outcome.predictions
    assert guess.shape == (4, 2)
    assert target.tolist() == [0, 1, 1, 0]


def test_records_are_those_with_a_label_that_counts():
    objective = OwnLoss("x", "y", {"own": CE(torch.ones(2))}, count="records")
    assert objective(NET, LABELS).count == 4
    assert objective.unknown_mean is None


@pytest.mark.parametrize(
    ("losses", "count", "words"),
    [
        pytest.param(
            {"own": CE(reduction="sum")},
            "records",
            r"own: is a sum.*own\.reduction=mean",
            id="a sum",
        ),
        pytest.param({"own": CE(torch.ones(2))}, None, "own: is a mean", id="weights"),
        pytest.param({"a": CE(), "b": CE(ignore_index=1)}, None, "a: leaves out", id="labels"),
    ],
)
def test_losses_that_passes_cannot_weigh_say_why(losses, count, words):
    objective = OwnLoss("x", "y", losses, count=count)
    objective(NET, {**LABELS, "y": LABELS["y"].clamp(min=0)})
    assert re.search(words, str(objective.unknown_mean))


@pytest.mark.parametrize(
    ("shape", "target", "predicts"),
    [
        pytest.param((6, 2), torch.randn(6, 2), "numbers", id="numbers"),
        pytest.param((6,), torch.randint(9, (6,)), "classes", id="a whole number as target"),
        pytest.param((6, 1), torch.randint(9, (6, 1)), "classes", id="in its own dimension"),
        pytest.param((6, 3), torch.randint(9, (6,)), "numbers", id="several beside a whole one"),
    ],
)
def test_numbers_are_compared_and_predicted_as_they_are(shape, target, predicts):
    batch = {"x": torch.randn(shape), "y": target}
    losses = {"own": lambda output, target: output.mean()}
    objective = OwnLoss("x", "y", losses, predicts=predicts)
    model = nn.Identity().eval()
    output, compared = objective(model, batch).predictions
    assert torch.equal(output, batch["x"])
    assert torch.equal(compared, target)
    assert torch.equal(objective.predict(model, batch).values, batch["x"])


def test_logits_become_probabilities_if_classes_are_predicted():
    objective = OwnLoss("x", ["y", "z"], {"l1": nn.L1Loss()}, predicts="classes")
    predicted = objective.predict(NET, {"x": BATCH["x"]})
    torch.testing.assert_close(predicted.values, NET(BATCH["x"]).softmax(1))
    assert (objective.inputs, objective.target) == (["x"], "y")


def test_a_loss_gets_every_output_of_which_the_first_is_the_prediction():
    class Net(nn.Module):
        def forward(self, x):
            return x, x.mean()

    batch = {"x": torch.randn(4, 3), "y": torch.randint(3, (4,))}
    losses = {"own": lambda output, target: output[1]}
    objective = OwnLoss("x", "y", losses, predicts="classes")
    model = Net().eval()
    outcome = objective(model, batch)
    assert outcome.loss == batch["x"].mean()
    for guess in (outcome.predictions[0], objective.predict(model, batch).values):
        torch.testing.assert_close(guess, batch["x"].softmax(1))


def test_a_loss_that_returns_no_tensor_is_named():
    with pytest.raises(ValueError, match="the loss own returned a float"):
        own_loss({"own": lambda output, target: 1.0})
