"""Objectives of classes: their losses and metrics against formulas, and what they refuse."""

import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

from framework.errors import ConfigError
from framework.objective import multilabel, own_loss
from framework.objective.classify import Classify, mean_logits
from framework.objective.distill import Distill
from framework.objective.focal import Focal
from framework.train.metrics import PassPlace, PassResults

RANDOM = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 3, generator=RANDOM)
LABELS = torch.tensor([0, 1, 2, 2, 1, 0])
SHARES = nn.functional.one_hot(LABELS, 3).float()
BATCH = {"image": LOGITS, "label": LABELS}
MODEL = nn.Identity()


def classify(batch=BATCH, smoothing=0.0, weights=None, model=MODEL):
    return Classify("image", "label", smoothing, class_weights=weights)(model, batch)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("label", [LABELS, SHARES], ids=["classes", "shares"])
def test_the_loss_is_the_mean_cross_entropy_with_a_share_for_all_classes(label, smoothing):
    logs = LOGITS.log_softmax(1)
    expected = -(1 - smoothing) * logs[torch.arange(6), LABELS].mean() - smoothing * logs.mean()
    torch.testing.assert_close(classify({**BATCH, "label": label}, smoothing).loss, expected)


@pytest.mark.parametrize("label", [LABELS, SHARES], ids=["classes", "shares"])
def test_a_record_weighs_as_much_as_its_class(label):
    weights = torch.tensor([1.0, 2.0, 0.5])
    losses = -LOGITS.log_softmax(1)[torch.arange(6), LABELS]
    loss = classify({**BATCH, "label": label}, weights=[1, 2, 0.5]).loss
    torch.testing.assert_close(loss, (losses * weights[LABELS]).mean())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.uint16])
def test_the_type_and_the_last_axis_of_labels_change_no_loss(dtype):
    label = LABELS.to(dtype).unsqueeze(1)
    losses = {"loss": nn.CrossEntropyLoss()}
    weighed = [1, 2, 0.5]
    for make in (
        lambda: Classify("image", "label", 0.1, class_weights=weighed),
        lambda: Focal("image", "label", 2.0, weighed),
        lambda: own_loss.OwnLoss("image", "label", losses, predicts="classes"),
    ):
        objective = make()
        outcome = objective(MODEL.eval(), {**BATCH, "label": label})
        wanted = make()(MODEL, BATCH)
        assert outcome.loss == wanted.loss
        assert torch.equal(outcome.predictions[1], wanted.predictions[1])
        assert objective.label_range[:3] == ("label", 3, (-100,))


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: Classify("image", "label", 0.1, **options),
        lambda **options: Classify("image", "label", 0.1, class_weights=[1.0] * 3, **options),
        lambda **options: Focal("image", "label", 2.0, **options),
        lambda **options: Distill("image", "label", MODEL, None, 0.5, 2.0, **options),
    ],
    ids=["classify", "weights", "focal", "distill"],
)
@pytest.mark.parametrize("ignored", [-100, 1], ids=["no class", "a class"])
def test_shares_count_as_the_labels_that_they_are(make, ignored):
    labels = torch.where(LABELS == 1, ignored, LABELS)
    shares = nn.functional.one_hot(LABELS, 3).float()
    shares[:, 1] *= ignored == 1
    objective = make(ignore_index=ignored)
    of_labels = objective(MODEL, {**BATCH, "label": labels})
    of_shares = objective(MODEL, {**BATCH, "label": shares})
    torch.testing.assert_close(of_shares.loss, of_labels.loss)
    assert of_shares.count == of_labels.count == (LABELS != 1).sum()
    assert torch.equal(of_shares.sums["accuracy"], of_labels.sums["accuracy"])


def test_a_guess_is_right_if_its_class_is_the_largest():
    guess = LOGITS.argmax(1)
    for label in (guess, nn.functional.one_hot(guess, 3).float()):
        outcome = classify({**BATCH, "label": label})
        assert (outcome.sums["accuracy"].tolist(), outcome.count) == ([True] * 6, 6)
    assert not classify({**BATCH, "label": (guess + 1) % 3}).sums["accuracy"].any()


def test_of_label_maps_every_right_pixel_is_counted():
    logits = torch.tensor([[[4.0, 0.0], [0.0, 4.0]], [[4.0, 4.0], [0.0, 0.0]]])
    label = torch.tensor([[0, 1], [0, 1]])
    outcome = classify({"image": logits, "label": label})
    assert (outcome.sums["accuracy"].tolist(), outcome.count) == ([2, 1], 4)


def test_a_model_may_take_several_fields():
    class Scaled(nn.Module):
        def forward(self, image, scale):
            return image * scale

    batch = {"image": LOGITS, "scale": torch.ones(6, 1), "label": LOGITS.argmax(1)}
    batch["scale"][2] = -1.0
    outcome = Classify(["image", "scale"], "label", 0.0)(Scaled(), batch)
    assert outcome.sums["accuracy"].tolist() == [True, True, False, True, True, True]


def test_predictions_are_probabilities_and_classes_in_evaluation_only():
    model = nn.Linear(3, 3)
    assert classify(model=model).predictions is None
    guess, target = classify(model=model.eval()).predictions
    assert torch.allclose(guess, model(LOGITS).softmax(1))
    assert torch.equal(target, LABELS)


@pytest.mark.parametrize("weights", [[1, 2], [1, 2, 3, 4]], ids=["fewer", "more"])
@pytest.mark.parametrize(
    "make",
    [
        lambda weights: Classify("image", "label", 0.0, class_weights=weights),
        lambda weights: Focal("image", "label", 2.0, weights),
        lambda weights: multilabel.Multilabel("image", "labels", weights),
    ],
    ids=["classify", "focal", "multilabel"],
)
def test_another_number_of_weights_than_of_classes_is_refused(make, weights):
    what = rf"C316.*length {len(weights)}, the model's output 3; give a weight"
    with pytest.raises(ConfigError, match=what):
        make(weights)(MODEL, {**BATCH, "labels": SHARES})


IMAGE = torch.randn(5, 2, 4, 6, generator=RANDOM)


class Corners(nn.Module):
    """Its logits are two corners of the image: top left, bottom right of the first channel."""

    def forward(self, image):
        return torch.stack([image[:, 0, 0, 0], image[:, 0, -1, -1]], 1)


def test_mirror_averages_an_image_and_its_mirror_image():
    logits = mean_logits(Corners(), IMAGE, "mirror")
    left = (IMAGE[:, 0, 0, 0] + IMAGE[:, 0, 0, -1]) / 2
    right = (IMAGE[:, 0, -1, -1] + IMAGE[:, 0, -1, 0]) / 2
    torch.testing.assert_close(logits, torch.stack([left, right], 1))


def test_translated_views_count_a_half_and_reflect_at_the_border():
    logits = mean_logits(Corners(), IMAGE, "mirror_translate")[:, 0]
    first = IMAGE[:, 0]
    here = (first[:, 0, 0] + first[:, 0, -1]) / 2
    # outside of the image lies its second row or column, in both views
    shifted = (first[:, 1, 1] + first[:, 1, 4]) / 2
    torch.testing.assert_close(logits, here / 2 + shifted / 2)


@pytest.mark.parametrize(("tta", "passes"), [("none", 1), ("mirror", 2), ("mirror_translate", 6)])
def test_views_are_for_evaluation_only(tta, passes):
    model, calls = nn.Sequential(Corners()), []
    model.register_forward_hook(lambda *_: calls.append(1))
    objective = Classify("image", "label", 0.0, tta)
    batch = {"image": IMAGE, "label": torch.zeros(5).long()}
    objective(model, batch)
    assert len(calls) == 1
    objective(model.eval(), batch)
    assert len(calls) == 1 + passes


def test_logits_that_cannot_be_averaged_are_refused():
    with pytest.raises(ValueError, match="tta = turn must be none, mirror or mirror_translate"):
        Classify("image", "label", 0.0, "turn")
    with pytest.raises(ValueError, match="has 3 dimensions"):
        mean_logits(Corners(), IMAGE[0], "mirror")
    with pytest.raises(ValueError, match="not one per pixel"):
        mean_logits(MODEL, IMAGE, "mirror")


def focal(gamma, weights=None, label=LABELS):
    return Focal("image", "label", gamma, weights)(MODEL, {**BATCH, "label": label}).loss


@pytest.mark.parametrize("label", [LABELS, SHARES], ids=["classes", "shares"])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_a_probable_class_counts_less_in_the_focal_loss(gamma, label):
    probabilities = LOGITS.softmax(1)[torch.arange(6), LABELS]
    losses = -((1 - probabilities) ** gamma) * probabilities.log()
    torch.testing.assert_close(focal(gamma, label=label), losses.mean())
    weighted = (losses * torch.tensor([1.0, 2.0, 3.0])[LABELS]).mean()
    torch.testing.assert_close(focal(gamma, [1, 2, 3], label), weighted)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_record_that_is_certain_has_a_finite_gradient(gamma):
    logits = torch.tensor([[80.0, 0.0]], requires_grad=True)
    batch = {"image": logits, "label": torch.tensor([0])}
    Focal("image", "label", gamma)(MODEL, batch).loss.backward()
    assert logits.grad.isfinite().all()


def net(seed, outputs=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, outputs), nn.BatchNorm1d(outputs))


def distill(share=0.5, temperature=2.0, teacher=None, **options):
    return Distill("image", "label", teacher or net(1), None, share, temperature, **options)


def test_the_loss_is_made_of_labels_and_teacher_which_are_both_named():
    objective, student = distill(0.25), net(0)
    outcome = objective(student, BATCH)
    logits, taught = student(LOGITS), objective.teacher(LOGITS)
    of_labels = nn.functional.cross_entropy(logits, LABELS)
    wanted = (taught / 2).softmax(1)
    of_teacher = 4 * (wanted * (wanted.log() - (logits / 2).log_softmax(1))).sum(1).mean()
    torch.testing.assert_close(outcome.losses["labels"], of_labels)
    torch.testing.assert_close(outcome.losses["teacher"], of_teacher)
    torch.testing.assert_close(outcome.loss, 0.75 * of_labels + 0.25 * of_teacher)


def test_labels_beside_a_teacher_are_smoothed_as_torch_does():
    objective, student = distill(label_smoothing=0.1), net(0)
    wanted = nn.functional.cross_entropy(student(LOGITS), LABELS, label_smoothing=0.1)
    torch.testing.assert_close(objective(student, BATCH).losses["labels"], wanted)
    with pytest.raises(ConfigError, match=r"C319\]: objective\.label_smoothing = 2"):
        distill(label_smoothing=2)


def test_a_teacher_may_be_learned_from_beside_shares_of_classes():
    shares = nn.functional.one_hot(LABELS, 3).float()
    of_shares = distill()(net(0), {**BATCH, "label": shares})
    of_labels = distill()(net(0), BATCH)
    torch.testing.assert_close(of_shares.losses, of_labels.losses)


def test_a_teacher_learns_nothing():
    objective = distill()
    before = {name: value.clone() for name, value in objective.teacher.state_dict().items()}
    objective(net(0), BATCH).loss.backward()
    assert not objective.teacher.training
    assert all(weight.grad is None for weight in objective.teacher.parameters())
    after = objective.teacher.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_teacher_with_logits_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"gives \(6, 3\), the teacher's is \(6, 2\)"):
        distill(teacher=net(1, 2))(net(0), BATCH)


SEVERAL = {
    "image": torch.randn(9, 4, generator=RANDOM),
    "labels": torch.randint(0, 2, (9, 4), generator=RANDOM, dtype=torch.uint8),
}


def means(batch=SEVERAL, cuts=(9,)):
    """Return the loss and the metrics over batches that are cut to the sizes ``cuts``."""
    objective = multilabel.Multilabel("image", "labels")
    pass_results = PassResults(objective)
    for part in zip(*(values.split(list(cuts)) for values in batch.values()), strict=True):
        result = objective(MODEL, dict(zip(batch, part, strict=True)))
        pass_results.add(result, len(part[0]), 1.0, PassPlace(1, None))
    return pass_results.results(lambda sums: sums).means


def test_the_loss_of_labels_is_the_mean_binary_cross_entropy():
    guess, truth = SEVERAL["image"].sigmoid().double(), SEVERAL["labels"].double()
    expected = -(truth * guess.log() + (1 - truth) * (1 - guess).log()).mean()
    assert means()["loss"] == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("cuts", [(9,), (4, 4, 1)], ids=["whole", "cut"])
def test_f1_and_accuracy_are_those_of_scikit_learn_over_any_batches(cuts):
    guess, truth = (SEVERAL["image"] > 0).numpy(), SEVERAL["labels"].numpy()
    metrics = means(cuts=cuts)
    assert metrics["f1"] == pytest.approx(f1_score(truth, guess, average="micro"), abs=1e-12)
    assert metrics["accuracy"] == pytest.approx((guess == truth).mean(), rel=1e-6)


def test_records_without_a_label_have_no_f1():
    nothing = {"image": -torch.ones(2, 4), "labels": torch.zeros(2, 4)}
    assert means(nothing, (2,))["f1"] == 0


def test_a_label_may_weigh_more():
    losses = [
        multilabel.Multilabel("image", "labels", weights)(MODEL, SEVERAL).loss
        for weights in (None, [1, 1, 1, 1], [3, 1, 1, 1])
    ]
    assert losses[0] == losses[1] < losses[2]


def test_another_number_of_labels_is_refused():
    with pytest.raises(ValueError, match=r"the model gives \(9, 4\), labels is \(9, 3\)"):
        means({**SEVERAL, "labels": SEVERAL["labels"][:, :3]})
