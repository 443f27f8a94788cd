"""Which validation an objective calls better, and which of its options are refused."""

import math

import pytest
from torch import nn

from framework.errors import ConfigError
from framework.objective.classify import Classify
from framework.objective.distill import Distill
from framework.objective.focal import Focal
from framework.objective.multilabel import Multilabel
from framework.objective.own_loss import OwnLoss
from framework.objective.recognize import Recognize
from framework.objective.regress import Regress
from framework.objective.restore import Restore
from framework.objective.segment import Segment

L1 = {"l1": nn.L1Loss()}
TEACHER = nn.Identity()


@pytest.mark.parametrize(
    ("objective", "metric", "good", "bad"),
    [
        (Classify("x", "y", 0.0), "accuracy", 0.6, 0.5),
        (Focal("x", "y", 2.0), "accuracy", 0.6, 0.5),
        (Distill("x", "y", TEACHER, None, 0.5, 2.0), "accuracy", 0.6, 0.5),
        (Multilabel("x", "y"), "f1", 0.6, 0.5),
        (Segment("x", "y"), "iou", 0.6, 0.5),
        (Recognize("x", "y", "a"), "cer", 0.1, 0.2),
        (Restore("x", "y", "l1", 1.0), "psnr", 31.0, 30.0),
        (Regress("x", "y", "mse"), "loss", 1.0, 2.0),
        (OwnLoss("x", "y", L1), "loss", 1.0, 2.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_better_metric_counts_more_than_a_lower_loss(objective, metric, good, bad):
    better, worse = {"loss": 2.0, metric: good}, {"loss": 1.0, metric: bad}
    assert objective.better(better, worse)
    assert not objective.better(worse, better)
    assert not objective.better(better, better)


@pytest.mark.parametrize(
    "objective",
    [Classify("x", "y", 0.0), Multilabel("x", "y"), Segment("x", "y"), Recognize("x", "y", "a")],
    ids=lambda objective: type(objective).__name__,
)
def test_of_equal_metrics_the_lower_loss_is_better(objective):
    metrics = dict.fromkeys(("accuracy", "f1", "iou", "cer"), 0.5)
    assert objective.better({**metrics, "loss": 1.0}, {**metrics, "loss": 2.0})


def distill(share=0.5, temperature=2.0, teacher=TEACHER):
    return Distill("x", "y", teacher, None, share, temperature)


REFUSED = {
    "gamma": (lambda: Focal("x", "y", -1), "C317.*gamma = -1"),
    "dice": (lambda: Segment("x", "y", dice=-1), "C318.*dice = -1"),
    "share": (lambda: distill(share=2), "C319.*share = 2"),
    "temperature": (lambda: distill(temperature=0), "C319.*temperature = 0"),
    "teacher": (lambda: distill(teacher="resnet"), "C319.*teacher = resnet: is not a model"),
    "loss": (lambda: Regress("x", "y", "huber"), "C111.*loss = huber: .*; choose mse or l1$"),
    "loss of images": (lambda: Restore("x", "y", "huber", 1.0), "C111.*loss = huber: not a loss"),
    "no characters": (lambda: Recognize("x", "y", ""), "C275.*different characters"),
    "a character twice": (lambda: Recognize("x", "y", "aba"), "C275.*different characters"),
    "views of several fields": (
        lambda: Classify(["x", "z"], "y", 0.0, tta="mirror"),
        "C277.*several fields",
    ),
}


@pytest.mark.parametrize(("make", "what"), REFUSED.values(), ids=REFUSED)
def test_an_impossible_option_is_refused(make, what):
    with pytest.raises(ConfigError, match=what):
        make()


@pytest.mark.parametrize("values", ["balance", [], [1, -1], [1, math.inf], [True], ["a"]], ids=str)
def test_weights_that_are_no_list_of_numbers_are_refused(values):
    with pytest.raises(ConfigError, match=r"C316.*objective.class_weights"):
        Classify("x", "y", 0.0, class_weights=values)


@pytest.mark.parametrize(
    ("losses", "options", "words"),
    [
        ({}, {}, "must have one or more losses"),
        ("huber", {}, "must have one or more losses"),
        ({"huber": "torch.nn.HuberLoss"}, {}, "losses.huber = torch.nn.HuberLoss: cannot be cal"),
        (L1, {"weights": {"l2": 1.0}}, "weights.l2 = 1.0: is the weight of no loss"),
        (L1, {"weights": {"l1": "much"}}, "must be a finite number"),
        (L1, {"weights": {"l1": math.nan}}, "must be a finite number"),
        (L1, {"weights": [1.0]}, "must be numbers by the name"),
        (L1, {"predicts": "boxes"}, "choose classes or numbers"),
    ],
    ids=["none", "text", "name", "stranger", "no number", "nan", "list", "boxes"],
)
def test_impossible_losses_of_the_user_are_refused(losses, options, words):
    with pytest.raises(ConfigError, match=rf"C390.*{words}"):
        OwnLoss("x", "y", losses, **options)
