"""Metrics of TorchMetrics: exact over batches, and what does not fit is refused."""

import io

import pytest
import torch

pytest.importorskip("torchmetrics")

from sklearn.metrics import average_precision_score, confusion_matrix, f1_score, roc_auc_score
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import (
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassRecall,
    MulticlassROC,
)

from framework.errors import ConfigError
from framework.parallel.none import NoParallel
from framework.train.torch_metrics import TorchMetrics, gathered
from tests.fakes import CPU

ONE = NoParallel(device=CPU)


def predictions(count=23):
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randn(count, 3, generator=generator).softmax(1),
        torch.randint(3, (count,), generator=generator),
    )


def made(**metrics):
    return TorchMetrics(metrics, ONE, say=print)


def test_results_are_those_of_scikit_learn_over_uneven_batches():
    metrics = made(
        f1=MulticlassF1Score(3), auroc=MulticlassAUROC(3), confusion=MulticlassConfusionMatrix(3)
    )
    guess, target = predictions()
    for _ in range(2):  # the second validation begins anew
        for start in range(0, 23, 8):
            metrics.add((guess[start : start + 8], target[start : start + 8]))
        results = metrics.results()
    assert results["f1"].item() == pytest.approx(f1_score(target, guess.argmax(1), average="macro"))
    assert results["auroc"].item() == pytest.approx(roc_auc_score(target, guess, multi_class="ovr"))
    assert results["confusion"].tolist() == confusion_matrix(target, guess.argmax(1)).tolist()


def test_batches_in_which_nothing_counts_change_no_result():
    metrics = made(f1=MulticlassF1Score(3), auroc=MulticlassAUROC(3))
    guess, target = predictions()
    nothing = (guess[:0], target[:0])
    assert metrics.tried(nothing).keys() == {"f1", "auroc"}
    metrics.add(nothing)
    assert all(value.isnan() for value in metrics.results().values())
    metrics.add((guess, target))
    expected = metrics.results()
    metrics.add(nothing)
    metrics.add((guess, target))
    assert metrics.results() == expected


@pytest.mark.parametrize(
    ("metric", "given", "words"),
    [
        pytest.param(MulticlassF1Score(5), predictions(4), r"\.x: does not fit", id="more classes"),
        pytest.param(MulticlassF1Score(3), None, " = x: the objective predicts nothing", id="none"),
        pytest.param(MulticlassROC(3), predictions(), r"\.x: is a tuple", id="a tuple as result"),
        pytest.param(torch.nn.Linear(1, 1), None, r"\.x: makes a Linear", id="no metric"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_by_name(metric, given, words):
    with pytest.raises(ConfigError, match=rf"C332\]: metrics{words}"):
        made(x=metric).tried(given)


class Lists(Metric):
    """Keeps a list that stays one."""

    def __init__(self):
        super().__init__()
        self.add_state("seen", default=[], dist_reduce_fx=None)

    def update(self, guess, target):
        self.seen.append(guess)

    def compute(self):
        return {"count": torch.tensor(len(self.seen)), "mean": 0.5}


def test_lists_that_no_ranks_can_join_are_refused():
    two = NoParallel(device=CPU)
    two.world_size = 2
    with pytest.raises(ConfigError, match=r"C332\]: metrics\.x: keeps seen in a way"):
        TorchMetrics({"x": Lists()}, two)


def test_a_class_without_records_is_left_out_and_named():
    printed = []
    kinds = {"recall": MulticlassRecall(3), "auroc": MulticlassAUROC(3)}
    kinds["precision"] = MulticlassAveragePrecision(3)
    metrics = TorchMetrics(kinds, ONE, printed.append, ["cat", "dog", "cow"])
    guess, target = predictions()
    target = target % 2
    for _ in range(2):
        metrics.add((guess[:9], target[:9]))
        metrics.add((guess[9:], target[9:]))
        results = metrics.results()
    binary = [(target == number).numpy() for number in range(2)]
    recalls = [(guess.argmax(1)[own] == number).float().mean() for number, own in enumerate(binary)]
    aurocs = [roc_auc_score(own, guess[:, number]) for number, own in enumerate(binary)]
    precisions = [average_precision_score(own, guess[:, n]) for n, own in enumerate(binary)]
    assert results["recall"].item() == pytest.approx(sum(recalls).item() / 2)
    assert results["auroc"].item() == pytest.approx(sum(aurocs) / 2)
    assert results["precision"].item() == pytest.approx(sum(precisions) / 2)
    assert printed == [
        f"note: metrics.{name}: the mean over the 2 classes that have records, without cow"
        for name in kinds
    ]


def test_a_metric_says_its_direction_if_it_has_one():
    metrics = made(f1=MulticlassF1Score(3), mean=MeanMetric())
    assert metrics.higher_is_better("f1") is True
    assert metrics.higher_is_better("mean") is None
    assert metrics.higher_is_better("other") is None


def test_an_empty_tensor_takes_the_type_of_the_others():
    class Two:
        """A rank without records beside one with int64 [3]."""

        world_size = 2

        def gather(self, values):
            file = io.BytesIO()
            torch.save(torch.zeros(0), file)
            return [torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8), values]

    empty, filled = gathered(torch.arange(3), Two())
    assert (empty.dtype, list(empty.shape), filled.tolist()) == (torch.int64, [0], [0, 1, 2])
