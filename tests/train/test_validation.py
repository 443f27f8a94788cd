"""Validation: what it computes, what it leaves alone, and which one is best."""

import math

import pytest
import torch
from torch import nn

from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective import multilabel, regress
from framework.objective.classify import Classify
from framework.objective.restore import Restore
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.train import checkpoint, watching
from framework.train.parts import GivenOutputs, OutputRecorder, evaluate, is_better, record_losses
from tests import fakes
from tests.fakes import CPU, FakeClock, FakeLoader, FakeSink, MeanValue, make_data, make_trainer
from tests.train.states import average, same, weights

MODEL = nn.Linear(1, 1)


def evaluated(loader, objective=None, metrics=None, clock=None):
    parts = FP32(False, device=CPU), clock or FakeClock(), NoParallel(device=CPU)
    return evaluate(MODEL, loader.epoch(0), objective or MeanValue(), *parts, metrics)


def values(count):
    return {"value": torch.arange(1.0, count + 1)}


def test_means_are_over_all_records_and_times_are_of_each_batch():
    clock = FakeClock()
    results = evaluated(FakeLoader(values(5), 2), clock=clock)
    assert results[:2] == ({"loss": 3.0, "total": 3.0}, 5.0)
    assert (clock.marks, clock.skips) == (["forward", "report"] * 3, 1)


def test_the_average_is_evaluated_without_gradients_and_the_model_trained_again():
    modes, seen, classify = [], [], Classify("x", "y", 0.0)

    def objective(model, batch):
        modes.append((model.training, torch.is_grad_enabled()))
        seen.append(weights(trainer))
        return classify(model, batch)

    objective.better = classify.better
    parts = {"val": FakeLoader(make_data(4), 4), "objective": objective, "ema": 0.9}
    trainer = make_trainer(make_data(8), 4, validate_every=1, **parts)
    trainer.fit()
    assert modes == [(True, True), (False, False)] * 2
    assert same(seen[3], average(trainer))
    assert not same(seen[3], weights(trainer))


class CountsPredictions:
    """Metrics that count the predictions that they see."""

    def __init__(self):
        self.seen = []

    def add(self, predictions):
        self.seen += predictions[0].tolist()

    def results(self):
        return {"most": torch.tensor(max(self.seen)), "seen": torch.tensor(self.seen)}


class Predicts(MeanValue):
    def __call__(self, model, batch):
        outcome = super().__call__(model, batch)
        outcome.predictions = (batch["value"], batch["value"])
        return outcome


@pytest.mark.parametrize(("rank", "expected"), [(0, [1, 3, 5]), (1, [2, 4])])
def test_metrics_see_every_record_of_a_rank_and_no_filler(rank, expected):
    loader = FakeLoader(values(5), 4, rank=rank, world_size=2)
    results = evaluated(loader, Predicts(), metrics=CountsPredictions())
    assert results.arrays["seen"].tolist() == expected
    assert results.means["most"] == max(expected)


NAN = math.nan


@pytest.mark.parametrize(
    ("objective", "bad", "good"),
    [
        (regress.Regress("x", "y", "mse"), {"loss": NAN}, {"loss": 9.0}),
        (Restore("x", "y", "mse", 1.0), {"loss": NAN, "psnr": NAN}, {"loss": 9.0, "psnr": 1.0}),
        # the class that NaN is counted as may be the most frequent
        (Classify("x", "y", 0.0), {"loss": NAN, "accuracy": 0.9}, {"loss": 9.0, "accuracy": 0.2}),
        (multilabel.Multilabel("x", "y"), {"loss": 1.0, "f1": NAN}, {"loss": 1.0, "f1": 0.0}),
    ],
    ids=["loss", "loss and metric", "loss with a good metric", "metric"],
)
def test_a_number_is_better_than_nan(objective, bad, good):
    parts = make_trainer(objective=objective).parts
    bad, good = ({f"one.{name}": value for name, value in means.items()} for means in (bad, good))
    for new, old, expected in ((good, bad, True), (bad, good, False), (bad, bad, False)):
        assert is_better(parts, {"val.one": None}, new, {**old, "step": 1}) is expected


@pytest.mark.parametrize(
    ("higher", "new", "old", "expected"),
    [
        *((True, 0.5, 0.4, True), (True, 0.4, 0.4, False), (False, 0.3, 0.4, True)),
        *((True, 0.1, NAN, True), (False, NAN, NAN, False)),
    ],
)
def test_a_metric_is_raised_or_lowered_and_a_number_beats_nan(higher, new, old, expected):
    assert watching.Goal("f1", higher).better({"f1": new}, {"f1": old}) is expected


class ValidatesTo:
    """An objective whose losses in validation are given, whatever the model does."""

    def __init__(self, *losses):
        self.losses = iter(losses)

    def __call__(self, model, batch):
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        if not model.training:
            loss = loss * 0 + next(self.losses)
        return Outcome(loss, {}, len(batch["x"]))

    def better(self, new, old):
        return new["loss"] < old["loss"]


def validated(*losses, checkpoints=None, state=None, **parts):
    """Return a Trainer that has validated after each step to one of these losses."""
    parts = {"val": FakeLoader(make_data(4), 4), "objective": ValidatesTo(*losses), **parts}
    checkpoints = checkpoints or fakes.FakeCheckpoints()
    parts = {"epochs": len(losses), "checkpoints": checkpoints, **parts}
    trainer = make_trainer(make_data(4), 4, lr=0.01, **parts)
    if state is not None:
        trainer.load_state_dict(state)
    trainer.fit()
    return trainer


def test_the_best_is_saved_as_best_and_remembered_with_its_step():
    sink = FakeSink()
    trainer = validated(5.0, 4.0, 6.0, sinks=[sink])
    assert [best for _, _, best in trainer.parts.checkpoints.saved] == [True, True, False]
    assert trainer.best == {"loss": 4.0, "step": 2}
    assert [report.best["loss"] for report in sink.of("val")] == [5.0, 4.0, 4.0]


class RefusesBest(fakes.FakeCheckpoints):
    """A full disk takes no weights of step 2."""

    def save(self, step, state, weights, best, final, ranked=()):
        super().save(step, state, weights, best, final)
        return checkpoint.Saved(None, best and step != 2)


def test_a_best_that_the_disk_has_refused_is_not_the_best():
    trainer = validated(3.0, 1.0, 2.0, 2.5, checkpoints=RefusesBest())
    assert [best for _, _, best in trainer.parts.checkpoints.saved] == [True, True, True, False]
    assert trainer.best == trainer.state_dict()["best"] == {"loss": 2.0, "step": 3}


def test_a_validation_before_the_first_step_changes_no_step_and_may_be_the_best():
    sink = FakeSink()
    losses = (1.0, 4.0, 3.0)
    trainer = validated(*losses, epochs=2, validate_first=True, report_every=1, sinks=[sink])
    assert [report.step for report in sink.of("val")] == [0, 1, 2]
    assert sink.of("val")[0].left_s is None
    assert trainer.best == {"loss": 1.0, "step": 0}
    assert [best for _, _, best in trainer.parts.checkpoints.saved] == [True, False, False]
    other = FakeSink()
    plain = validated(4.0, 3.0, report_every=1, sinks=[other])
    assert same(weights(plain), weights(trainer))
    assert [own.means for own in other.of("train")] == [own.means for own in sink.of("train")]
    first = trainer.parts.checkpoints.saved[0][0]
    resumed = validated(4.0, 3.0, epochs=2, validate_first=True, state=first)
    assert same(weights(resumed), weights(trainer))


def test_the_weights_of_the_k_best_are_kept_by_their_steps_also_after_a_resume(tmp_path):
    def kept(*losses, state=None, **options):
        parts = {"val": FakeLoader(make_data(4), 4), "objective": ValidatesTo(*losses)}
        folder = checkpoint.CheckpointFolder(tmp_path, {}, 2, None, print)
        epochs = len(losses) + (state is not None and state["progress"]["epoch"])
        plan = {"epochs": epochs, "keep_best": 2, **options}
        trainer = make_trainer(make_data(4), 4, checkpoints=folder, lr=0.01, **parts, **plan)
        if state is not None:
            trainer.load_state_dict(state)
        trainer.fit()
        files = sorted(path.name for path in folder.folder.glob("best*"))
        return [int(own["step"]) for own in trainer.bests], files

    assert kept(5.0, 4.0, 6.0, 4.5) == ([2, 4], ["best-00000002.pt", "best-00000004.pt", "best.pt"])
    best, other = (torch.load(tmp_path / f"checkpoints/best{own}.pt") for own in ("", "-00000002"))
    assert same(best, other)
    state = checkpoint.newest_state(tmp_path).state
    assert kept(4.25, state=state) == ([2, 5], ["best-00000002.pt", "best-00000005.pt", "best.pt"])
    state = checkpoint.newest_state(tmp_path).state
    assert kept(9.0, state=state, keep_best=1) == ([2], ["best.pt"])


def test_a_validation_that_is_nan_is_said_once_and_a_number_is_better():
    printed = []
    trainer = validated(math.nan, math.nan, 1.0, 0.5, 2.0, say=printed.append)
    assert trainer.best == {"loss": 0.5, "step": 4}
    what = "the loss of the validation after step 1 is NaN"
    assert printed == [f"warning: {what}; look at the validation data, or lower optim.lr"]


def sets(**losses):
    """Return a validation set for each name, whose loss is the given value."""
    return {name: FakeLoader({"value": torch.tensor([loss])}, 1) for name, loss in losses.items()}


def test_each_set_is_reported_as_a_split_of_its_own():
    sink = FakeSink()
    parts = {"objective": MeanValue(), "val": sets(a=2.0, b=5.0), "sinks": [sink]}
    trainer = make_trainer({"value": torch.ones(2)}, 1, **parts)
    trainer.fit()
    assert [report.means["loss"] for report in sink.of("val.a")] == [2.0]
    assert [report.means["loss"] for report in sink.of("val.b")] == [5.0]
    assert trainer.val_means == {"a.loss": 2.0, "a.total": 2.0, "b.loss": 5.0, "b.total": 5.0}
    assert trainer.best == {**trainer.val_means, "step": 2}


@pytest.mark.parametrize(
    ("best", "step"),
    [
        pytest.param(None, 1, id="the first set's loss"),
        pytest.param(watching.Goal("b.loss", False), 2, id="a set's metric"),
        pytest.param(watching.Goal("total", True), 3, id="a metric of the first set"),
    ],
)
def test_the_first_set_or_a_metric_decides_what_is_best(best, step):
    val = sets(a=1.0, b=9.0)
    after_each_step = iter([(2.0, 3.0), (4.0, 1.0), (6.0, 7.0)])

    def stop():
        for name, value in zip(val, next(after_each_step), strict=True):
            val[name].data["value"].fill_(value)
        return False

    parts = {"objective": MeanValue(), "val": val, "best": best, "stop": stop}
    trainer = make_trainer({"value": torch.ones(3)}, 1, validate_every=1, **parts)
    trainer.fit()
    assert trainer.best["step"] == step


def test_a_metric_that_no_validation_has_is_refused_with_the_names():
    trainer = make_trainer(val=FakeLoader(make_data(6), 4), best=watching.Goal("f1", True))
    with pytest.raises(ConfigError, match=r"C331\]: best\.metric = f1: .*; use loss, accuracy$"):
        trainer.fit()


class Net(nn.Module):
    name = "net"

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x.flatten(1))


def batch_of(count):
    images = torch.rand(count, 1, 2, 2)
    return {"index": torch.arange(count), "image": images, "label": torch.arange(count) % 3}


def test_the_losses_of_records_have_the_mean_of_the_batch():
    net, batch = Net().eval(), batch_of(5)
    recorder = OutputRecorder(net).eval()
    objective = Classify("image", "label", 0.0, tta="mirror_translate")
    loss = objective(recorder, batch).loss
    calls = net.calls
    losses = record_losses(objective, recorder.outputs, batch)
    assert torch.allclose(losses.mean(), loss.double(), atol=1e-6)
    assert net.calls == calls  # the model did not run again


def test_a_replay_cuts_what_has_a_row_per_record():
    output = (torch.arange(6).view(3, 2), torch.tensor(7.0))
    rows, scalar = GivenOutputs([output], 3, record=1)()
    assert rows.tolist() == [[2, 3]]
    assert scalar == 7
