import math
import random

import pytest
import torch
from torch import nn

from framework.objective.classify import Classify
from framework.objective.regress import Regress
from framework.objective.restore import Restore
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.train.reporter import SplitResults
from framework.train.validate import evaluate, is_better, means_of_sets, splits_of
from tests.fakes import CPU, FakeClock, FakeLoader, MeanValue, make_trainer


def evaluated(model, count=5):
    data = {"value": torch.arange(1.0, count + 1)}
    clock = FakeClock()
    result = evaluate(
        model,
        FakeLoader(data, 2),
        MeanValue(),
        FP32(False, device=CPU),
        clock,
        NoParallel(device=CPU),
    )
    return result, clock


def test_means_are_over_all_records_the_short_batch_included():
    assert evaluated(nn.Linear(1, 1))[0][:2] == ({"loss": 3.0, "total": 3.0}, 5.0)


def test_nothing_is_learned_and_no_graph_is_kept():
    model = nn.Linear(1, 1)
    evaluated(model)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_its_time_is_measured_apart_batch_by_batch():
    clock = evaluated(nn.Linear(1, 1))[1]
    assert (clock.marks, clock.skips) == (["forward", "report"] * 3, 1)


def test_an_error_ends_the_loader_at_once():
    ended = []

    class Loader(FakeLoader):
        def epoch(self, epoch, start=0):
            try:
                yield from super().epoch(epoch, start)
            finally:
                ended.append(True)

    def fails(model, batch):
        raise RuntimeError("out of memory")

    loader, clock = Loader({"value": torch.arange(4.0)}, 2), FakeClock()
    try:
        evaluate(
            nn.Linear(1, 1), loader, fails, FP32(False, device=CPU), clock, NoParallel(device=CPU)
        )
    except RuntimeError:  # whose traceback still holds the frame
        assert ended == [True]


class Drawing(nn.Module):
    """Draws in evaluation too."""

    def forward(self, value):
        return value * torch.rand(()) * random.random()


def test_what_is_drawn_in_it_does_not_move_the_generators():
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(3).tolist(), random.random()
    torch.manual_seed(3)
    random.seed(3)
    data = {"value": torch.arange(1.0, 6.0)}
    objective = lambda model, batch: MeanValue()(model, {"value": model(batch["value"])})  # noqa: E731
    evaluate(
        Drawing(),
        FakeLoader(data, 2),
        objective,
        FP32(False, device=CPU),
        FakeClock(),
        NoParallel(device=CPU),
    )
    assert (torch.rand(3).tolist(), random.random()) == expected


class CountsPredictions:
    """Metrics that count the predictions they see."""

    def __init__(self):
        self.seen = []

    def add(self, predictions):
        self.seen += predictions[0].tolist()

    def results(self):
        seen, self.seen = self.seen, []
        return {"most": torch.tensor(max(seen)), "seen": torch.tensor(seen)}


class Predicts(MeanValue):
    def __call__(self, model, batch):
        outcome = super().__call__(model, batch)
        outcome.predictions = (batch["value"], batch["value"])
        return outcome


def test_metrics_see_every_record_that_counts_and_no_filler():
    data = {"value": torch.arange(1.0, 6.0)}
    for rank, expected in enumerate(([1, 3, 5], [2, 4])):
        loader = FakeLoader(data, 4, rank=rank, world_size=2)
        parts = FP32(False, device=CPU), FakeClock(), NoParallel(device=CPU)
        results = evaluate(nn.Linear(1, 1), loader, Predicts(), *parts, CountsPredictions())
        assert results.arrays["seen"].tolist() == expected
        assert results.means["most"] == max(expected)


def test_means_of_several_sets_begin_with_the_name_of_the_set():
    results = [SplitResults(f"val.{name}", {"loss": 1.0}, {}, 1.0, {}) for name in ("a", "b")]
    assert means_of_sets(results) == {"a.loss": 1.0, "b.loss": 1.0}
    assert means_of_sets([results[0]._replace(split="val")]) == {"loss": 1.0}


def test_splits_are_named_by_their_sets():
    loader = FakeLoader({"value": torch.ones(1)}, 1)
    assert splits_of(None) == {}
    assert splits_of(loader) == {"val": loader}
    assert splits_of({"a": loader, "b": loader}).keys() == {"val.a", "val.b"}


class HigherF1:
    def better(self, new, old):
        return new["f1"] > old["f1"]


@pytest.mark.parametrize(
    ("objective", "bad", "good"),
    [
        (Regress("x", "y", "mse"), {"loss": math.nan}, {"loss": 9.0}),
        (
            Restore("x", "y", "mse", 1.0),
            {"loss": math.nan, "psnr": math.nan},
            {"loss": 9.0, "psnr": 1.0},
        ),
        # The class that NaN is counted as may happen to be the most frequent.
        (
            Classify("x", "y", 0.0),
            {"loss": math.nan, "accuracy": 0.9},
            {"loss": 9.0, "accuracy": 0.2},
        ),
        (HigherF1(), {"loss": 1.0, "f1": math.nan}, {"loss": 1.0, "f1": 0.0}),
    ],
)
@pytest.mark.parametrize("split", ["val", "val.one"])
def test_a_number_is_better_than_nan(objective, bad, good, split):
    parts = make_trainer(objective=objective).parts
    prefix = split[4:] and "one."
    bad = {f"{prefix}{name}": value for name, value in bad.items()}
    good = {f"{prefix}{name}": value for name, value in good.items()}
    assert is_better(parts, {split: None}, good, {**bad, "step": 1})
    assert not is_better(parts, {split: None}, bad, {**good, "step": 1})
    assert not is_better(parts, {split: None}, bad, {**bad, "step": 1})
    assert not is_better(parts, {split: None}, good, {**good, "step": 1})
