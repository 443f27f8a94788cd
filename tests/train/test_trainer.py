"""The Trainer, with fake parts around real torch models."""

import math
import random
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import framework.train.trainer
from framework.contracts.data import MicroBatch
from framework.contracts.training import Outcome, Saved, Watcher
from framework.errors import ConfigError, NumericError
from framework.measure.clock import HostClock, NoClock, make_clock
from framework.objective.classify import Classify
from framework.parallel.none import NoParallel
from framework.precision.amp import AMP
from framework.schedule.cosine import Cosine
from framework.schedule.one_cycle import OneCycle
from framework.train.goal import Goal
from framework.train.parts import never
from framework.train.stop_watchers import EarlyStop, TimeBudget
from framework.train.watching import Watching
from tests.fakes import (
    CPU,
    FakeCheckpoints,
    FakeClock,
    FakeLoader,
    FakeSink,
    MeanValue,
    Reads,
    SkippingPrecision,
    make_data,
    make_model,
    make_trainer,
    span,
    stop_after,
)


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.parts.model.parameters()]


def same(left, right):
    """Return whether two nested states are equal bit by bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


# ------------------------------------------------------------------------------------- accumulation


@pytest.mark.parametrize("accumulate", [2, 3, 5, 16])
def test_accumulated_passes_learn_what_one_big_batch_learns(accumulate):
    whole = make_trainer(make_data(16), 16, epochs=3)
    cut = make_trainer(make_data(16), 16, epochs=3, order={"accumulate": accumulate})
    whole.fit()
    cut.fit()
    assert cut.parts.train.yielded == accumulate * 3
    torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("accumulate", [2, 3, 4, 8])
def test_a_short_last_window_weighs_what_it_holds(accumulate):
    whole = make_trainer(make_data(19), 8, epochs=2)  # 8, 8, 3
    cut = make_trainer(make_data(19), 8, epochs=2, order={"accumulate": accumulate})
    whole.fit()
    cut.fit()
    assert cut.progress.step == 6
    torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-12, atol=1e-14)


def test_the_epoch_is_counted_right_after_the_batch_size_has_changed():
    first = make_trainer(make_data(16), 4, epochs=1)
    first.fit()
    sink = FakeSink()
    second = make_trainer(make_data(16), 8, epochs=3, sinks=[sink], report_every=1)
    second.load_state_dict(first.state_dict())
    second.fit()
    steps = [(report.step, report.epoch) for report in sink.reports]
    assert steps == [(5, 2), (6, 2), (7, 3), (8, 3)]


@pytest.mark.parametrize(("batch_size", "steps"), [(8, 12), (4, 16), (2, 24)])
def test_a_run_resumed_with_another_batch_size_trains_the_epochs_that_are_left(batch_size, steps):
    first = make_trainer(make_data(16), 4, epochs=2)
    first.fit()
    second = make_trainer(make_data(16), batch_size, epochs=4)
    second.load_state_dict(first.state_dict())
    assert second.total_steps == steps
    second.fit()
    assert (second.progress.step, second.progress.epoch) == (steps, 4)


@pytest.mark.parametrize("batch_size", [8, 2])
def test_a_finished_run_stays_finished_with_another_batch_size(batch_size):
    first = make_trainer(make_data(16), 4, epochs=2)
    first.fit()
    second = make_trainer(make_data(16), batch_size, epochs=2)
    second.load_state_dict(first.state_dict())
    assert second.progress.step == second.total_steps == 8


def test_accumulated_passes_report_the_same_loss_and_metrics():
    sinks = FakeSink(), FakeSink()
    make_trainer(make_data(19), 8, sinks=sinks[:1], report_every=1).fit()
    make_trainer(make_data(19), 8, sinks=sinks[1:], report_every=1, order={"accumulate": 3}).fit()
    for whole, cut in zip(sinks[0].reports, sinks[1].reports, strict=True):
        assert cut.means == pytest.approx(whole.means, rel=1e-12)


def test_clipping_is_of_the_whole_batch_not_of_each_pass():
    whole = make_trainer(make_data(16), 16, clip_norm=0.01)
    cut = make_trainer(make_data(16), 16, clip_norm=0.01, order={"accumulate": 4})
    whole.fit()
    cut.fit()
    torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-12, atol=1e-14)


def test_a_clipped_step_is_as_long_as_the_norm_allows():
    trainer = make_trainer(make_data(8), 8, lr=1.0, momentum=0.0, clip_norm=0.01)
    before = weights(trainer)
    trainer.fit()
    moved = torch.stack(
        [(new - old).norm() for new, old in zip(weights(trainer), before, strict=True)]
    ).norm()
    assert float(moved) == pytest.approx(0.01, rel=1e-3)


# ------------------------------------------------------------------------------------ skipped steps


def test_a_skipped_step_moves_nothing():
    trainer = make_trainer(precision=SkippingPrecision(0), ema=0.5, max_steps=1, lr=1.0)
    before = weights(trainer)
    trainer.fit()
    assert same(weights(trainer), before)
    assert same(list(trainer.stepper.average.state_dict().values()), before)
    assert (trainer.progress.step, trainer.progress.scheduled) == (1, 0)


def test_the_average_moves_with_every_step_that_is_taken():
    trainer = make_trainer(precision=SkippingPrecision(0), ema=0.5, max_steps=2, lr=1.0)
    before = weights(trainer)
    trainer.fit()
    expected = [(old + new) / 2 for old, new in zip(before, weights(trainer), strict=True)]
    torch.testing.assert_close(
        list(trainer.stepper.average.state_dict().values()), expected, rtol=1e-12, atol=1e-14
    )


def test_a_skipped_step_takes_no_place_in_the_schedule():
    sink, schedule = FakeSink(), Cosine(warmup_steps=3, final=0.0)
    trainer = make_trainer(
        precision=SkippingPrecision(1, 2), sinks=[sink], schedule=schedule, report_every=1, lr=1.0
    )
    trainer.fit()
    factors = [schedule(step, trainer.total_steps) for step in (0, 1, 1, 1, 2)]
    assert [report.learning_rate for report in sink.of("train")] == factors


def overflowing(at_step):
    """Return an objective whose loss is huge at the call ``at_step``.

    Its scaled gradients are then infinite in 16 bits.
    """
    classify, calls = Classify("x", "y", 0.0), iter(range(1 << 30))

    def objective(model, batch):
        outcome = classify(model, batch)
        factor = 1e38 if next(calls) == at_step else 1.0
        return type(outcome)(outcome.loss * factor, outcome.sums, outcome.count)

    objective.better = classify.better
    return objective


def test_an_overflow_of_real_half_precision_moves_nothing_and_training_goes_on():
    amp = AMP("fp16", device=CPU)
    data, model = make_data(12, torch.float32), make_model(torch.float32)
    steps = []

    def stop():
        steps.append((trainer.progress.scheduled, same(weights(trainer), before)))
        return False

    parts = {"precision": amp, "objective": overflowing(at_step=0), "stop": stop}
    trainer = make_trainer(data, 4, model=model, ema=0.5, schedule=OneCycle(0.3, 0.1), **parts)
    before = weights(trainer)
    trainer.fit()
    assert steps == [(0, True), (1, False), (2, False)]


def test_an_overflow_changes_neither_the_average_nor_the_rate():
    amp, schedule = AMP("fp16", device=CPU), OneCycle(0.5, 0.1)
    trainer = make_trainer(
        make_data(12, torch.float32),
        4,
        model=make_model(torch.float32),
        precision=amp,
        ema=0.5,
        schedule=schedule,
        objective=overflowing(at_step=0),
        max_steps=1,
    )
    before = weights(trainer)
    trainer.fit()
    assert same(list(trainer.stepper.average.state_dict().values()), before)
    assert trainer.progress.scheduled == 0
    assert amp.state_dict()["scale"] == 2.0**15


# ------------------------------------------------------------------------------------------- rhythm


def test_reports_come_every_so_many_steps_and_at_the_end_of_an_epoch():
    sink = FakeSink()
    make_trainer(make_data(20), 4, sinks=[sink], epochs=2, report_every=2).fit()
    assert [(report.step, report.epoch) for report in sink.reports] == [
        (2, 1),
        (4, 1),
        (5, 1),
        (6, 2),
        (8, 2),
        (10, 2),
    ]


def test_validation_comes_at_the_end_of_every_epoch():
    sink = FakeSink()
    make_trainer(make_data(20), 4, sinks=[sink], epochs=2, val=FakeLoader(make_data(6), 4)).fit()
    assert [report.step for report in sink.of("val")] == [5, 10]


def test_validation_comes_every_so_many_steps_and_at_the_end():
    sink = FakeSink()
    make_trainer(
        make_data(20), 4, sinks=[sink], epochs=2, validate_every=4, val=FakeLoader(make_data(6), 4)
    ).fit()
    assert [report.step for report in sink.of("val")] == [4, 8, 10]


@pytest.mark.parametrize("validate_every", [1, 2, 3, 5])
def test_validation_between_two_reports_mixes_with_nothing(validate_every):
    train = {"value": torch.full((20,), 1024.0)}
    val = {"value": torch.full((6,), 2.0)}
    sink = FakeSink()
    loader, options = (
        FakeLoader(val, 4),
        {"report_every": 4, "validate_every": validate_every, "sinks": [sink]},
    )
    make_trainer(train, 4, objective=MeanValue(), val=loader, **options).fit()
    assert {report.means["loss"] for report in sink.of("val")} == {2.0}
    assert {report.means["loss"] for report in sink.of("train")} == {1024.0}


@pytest.mark.parametrize("max_steps", [1, 4, 5, 6, 7])
def test_max_steps_stops_exactly(max_steps):
    sink = FakeSink()
    trainer = make_trainer(make_data(20), 4, sinks=[sink], epochs=2, max_steps=max_steps)
    trainer.fit()
    assert (trainer.progress.step, trainer.total_steps) == (max_steps, max_steps)
    assert sink.of("train")[-1].step == max_steps
    assert not trainer.stopped


def test_a_run_shorter_than_max_steps_ends_with_its_epochs():
    trainer = make_trainer(make_data(20), 4, epochs=2, max_steps=99)
    trainer.fit()
    assert (trainer.progress.step, trainer.total_steps, trainer.progress.epoch) == (10, 10, 2)


def test_epochs_yields_the_newest_validation_after_each_epoch():
    trainer = make_trainer(make_data(20), 4, epochs=3, val=FakeLoader(make_data(6), 4))
    steps = []
    for means in trainer.epochs():
        steps.append(trainer.progress.step)
        assert means == trainer.val_means
    assert steps == [5, 10, 15]


def test_who_stops_iterating_epochs_stops_the_run():
    trainer = make_trainer(make_data(20), 4, epochs=3)
    next(trainer.epochs())
    assert trainer.progress.step == 5


def test_every_epoch_of_the_loader_is_closed_also_when_it_is_left_early():
    trainer = make_trainer(make_data(20), 4, epochs=3, max_steps=7)
    trainer.fit()
    assert trainer.parts.train.started == [(0, 0), (1, 0)]
    assert trainer.parts.train.closed == 2


def test_an_error_in_a_step_closes_the_loader_and_comes_out():
    trainer = make_trainer(stop=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert trainer.parts.train.closed == 1


# ----------------------------------------------------------------------------------------- stopping


def test_a_stop_saves_and_stops():
    checkpoints, sink = FakeCheckpoints(), FakeSink()
    trainer = make_trainer(
        make_data(20), 4, epochs=2, checkpoints=checkpoints, sinks=[sink], stop=stop_after(3)
    )
    trainer.fit()
    assert (trainer.stopped, trainer.progress.step, trainer.progress.epoch_step) == (True, 3, 3)
    assert [state["progress"]["step"] for state, _, _ in checkpoints.saved] == [3]
    assert (
        sink.reports == []
    )  # they come at their steps only, so that a resumed run's are those of an undisturbed one
    assert (sink.flushed, checkpoints.finals) == ([0], [True])
    assert trainer.pace.num_records == 12


def test_a_stop_at_the_very_last_step_is_a_run_that_is_finished():
    trainer = make_trainer(make_data(8), 4, val=FakeLoader(make_data(6), 4), stop=stop_after(2))
    trainer.fit()
    assert trainer.val_means
    assert not trainer.stopped


def test_a_stop_at_the_end_of_an_epoch_costs_no_validation():
    checkpoints, sink = FakeCheckpoints(), FakeSink()
    parts = {"epochs": 2, "checkpoints": checkpoints, "sinks": [sink]}
    make_trainer(
        make_data(8), 4, val=FakeLoader(make_data(6), 4), stop=stop_after(2), **parts
    ).fit()
    resumed = make_trainer(make_data(8), 4, val=FakeLoader(make_data(6), 4), **parts)
    resumed.load_state_dict(checkpoints.saved[-1][0])
    resumed.fit()
    assert [report.step for report in sink.of("val")] == [2, 4]


# ------------------------------------------------------------------------------------------- saving


def test_the_best_is_saved_as_best_and_remembered_with_its_step():
    data, model = {"value": torch.tensor([3.0, 1.0, 2.0])}, nn.Linear(1, 1)
    checkpoints = FakeCheckpoints()
    val = FakeLoader({"value": torch.tensor([5.0])}, 1)
    every = {"report_every": 1, "validate_every": 1}
    values = iter([5.0, 4.0, 6.0])
    parts = {"val": val, "checkpoints": checkpoints, **every}
    parts["stop"] = lambda: val.data["value"].fill_(next(values)) is None
    trainer = make_trainer(data, 1, model=model, objective=MeanValue(), **parts)
    trainer.fit()
    assert [best for _, _, best in checkpoints.saved] == [True, True, False]
    assert (trainer.best["loss"], trainer.best["step"]) == (4.0, 2)


class RefusesBest(FakeCheckpoints):
    """A full disk takes no weights of step 2."""

    def save(self, step, state, weights, best, final):
        super().save(step, state, weights, best, final)
        return Saved(None, best and step != 2)


def test_a_best_that_the_disk_has_refused_is_not_the_best():
    checkpoints, val = RefusesBest(), FakeLoader(make_data(4), 4)
    objective = ValidatesTo(3.0, 1.0, 2.0, 2.5)
    parts = {"checkpoints": checkpoints, "val": val, "objective": objective, "epochs": 4}
    trainer = make_trainer(make_data(4), 4, **parts)
    trainer.fit()
    assert [best for _, _, best in checkpoints.saved] == [True, True, True, False]
    assert trainer.best == {"loss": 2.0, "step": 3}
    assert trainer.state_dict()["best"] == trainer.best


def test_the_other_ranks_hear_of_a_best_that_rank_0_could_not_save(monkeypatch):
    asked = []
    answer = lambda parallel, flag: asked.append(flag) or True  # noqa: E731
    monkeypatch.setattr(framework.train.trainer, "on_any_rank", answer)
    parallel, val = NoParallel(device=CPU), FakeLoader(make_data(4), 4)
    parallel.rank = 1
    trainer = make_trainer(make_data(4), 4, parallel=parallel, val=val, checkpoints=RefusesBest())
    trainer.fit()
    assert (trainer.best, asked) == ({}, [False])


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


def test_a_validation_that_is_nan_is_said_once_and_a_number_is_better():
    said = []
    val = FakeLoader(make_data(4), 4)
    objective = ValidatesTo(math.nan, math.nan, 1.0, 0.5, 2.0)
    parts = {"val": val, "objective": objective, "say": said.append, "epochs": 5}
    trainer = make_trainer(make_data(4), 4, **parts)
    trainer.fit()
    assert (trainer.best["loss"], trainer.best["step"]) == (0.5, 4)
    what = "the loss of the validation after step 1 is NaN"
    assert said == [f"warning: {what}; look at the validation data, or lower optim.lr"]


def test_between_two_validations_the_state_is_saved_without_weights_to_use():
    checkpoints = FakeCheckpoints()
    make_trainer(make_data(20), 4, checkpoints=checkpoints, save_every=2).fit()
    assert [
        (state["progress"]["step"], kept is not None) for state, kept, _ in checkpoints.saved
    ] == [
        (2, False),
        (4, False),
        (5, True),
    ]


def test_the_state_is_saved_when_it_is_time():
    checkpoints = FakeCheckpoints(late=[False, True, False, False, False])
    make_trainer(make_data(20), 4, checkpoints=checkpoints).fit()
    assert [state["progress"]["step"] for state, _, _ in checkpoints.saved] == [2, 5]
    assert checkpoints.finals == [False, True]


def test_a_state_saved_in_between_changes_no_report():
    sinks = FakeSink(), FakeSink()
    make_trainer(make_data(40), 4, report_every=3, sinks=sinks[:1]).fit()
    make_trainer(
        make_data(40),
        4,
        report_every=3,
        sinks=sinks[1:],
        checkpoints=FakeCheckpoints(),
        save_every=1,
    ).fit()
    assert [report.means for report in sinks[1].reports] == [
        report.means for report in sinks[0].reports
    ]


def test_without_validation_the_state_is_saved_at_the_end_of_every_epoch():
    checkpoints = FakeCheckpoints()
    make_trainer(make_data(8), 4, epochs=2, checkpoints=checkpoints).fit()
    assert [(state["progress"]["step"], best) for state, _, best in checkpoints.saved] == [
        (2, False),
        (4, False),
    ]


@pytest.mark.parametrize(("save_epochs", "steps"), [(2, [4, 6]), (None, [6])])
def test_epochs_between_two_saves_end_without_one(save_epochs, steps):
    checkpoints = FakeCheckpoints()
    plan = {"epochs": 3, "save_epochs": save_epochs, "validate_every": 100}
    make_trainer(make_data(8), 4, checkpoints=checkpoints, **plan).fit()
    assert [state["progress"]["step"] for state, _, _ in checkpoints.saved] == steps


def test_the_average_is_kept_if_there_is_one():
    checkpoints = FakeCheckpoints()
    trainer = make_trainer(make_data(8), 4, ema=0.5, checkpoints=checkpoints)
    trainer.fit()
    state, kept, _ = checkpoints.saved[-1]
    assert same(kept, trainer.stepper.average.state_dict())
    assert same(state["model"], dict(trainer.parts.model.state_dict()))


def test_only_rank_0_saves():
    checkpoints, second = FakeCheckpoints(), NoParallel(device=CPU)
    second.rank = 1
    make_trainer(make_data(8), 4, parallel=second, checkpoints=checkpoints).fit()
    assert checkpoints.saved == []


# ------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_raises_numeric_error(value):
    data = {"value": torch.tensor([1.0, 1.0, value, 1.0])}
    trainer = make_trainer(data, 1, objective=MeanValue(), report_every=2)
    with pytest.raises(NumericError, match=r"^error\[N101\]: step 3: the loss is (nan|inf)"):
        trainer.fit()


def test_the_reported_loss_is_the_mean_over_records_exactly():
    values = (
        torch.arange(26, dtype=torch.float64) ** 2 * 12
    )  # so that means of 1, 2, 3 and 4 records are exact
    sink = FakeSink()
    trainer = make_trainer(
        {"value": values},
        10,
        objective=MeanValue(),
        sinks=[sink],
        report_every=99,
        order={"accumulate": 3},
    )
    trainer.fit()
    (report,) = sink.reports
    assert report.means["loss"] == float(values.sum()) / 26
    assert report.means["total"] == float(values.sum()) / 26


def test_the_validation_loss_is_the_mean_over_records_exactly():
    values = torch.arange(11, dtype=torch.float64) ** 2 * 12
    sink = FakeSink()
    val = FakeLoader({"value": values}, 4)
    make_trainer({"value": values}, 4, objective=MeanValue(), val=val, sinks=[sink]).fit()
    assert sink.of("val")[0].means["loss"] == float(values.sum()) / 11


def test_a_filler_counts_nothing():
    data = {
        "value": torch.tensor([8.0, 8.0, 8.0])
    }  # two ranks: the second's only record of the last step is a filler
    sink = FakeSink()
    order = {"rank": 1, "world_size": 2}
    trainer = make_trainer(
        data, 2, objective=MeanValue(), sinks=[sink], report_every=99, order=order
    )
    trainer.fit()
    assert (trainer.parts.train.yielded, trainer.pace.num_records) == (2, 1)
    assert sink.reports[0].means == {"loss": 8.0, "total": 8.0}


def test_spans_are_seconds_per_step_however_many_passes_a_step_has():
    sink, clock = FakeSink(), FakeClock()
    train = FakeLoader(make_data(20), 4, clock, accumulate=2)
    trainer = make_trainer(train=train, clock=clock, sinks=[sink], report_every=2)
    trainer.fit()
    first, *rest = [report.spans for report in sink.reports]
    known = {
        "wait": span(2.0, 2.0),
        "forward": span(2.0, 2.0),
        "backward": span(2.0, 2.0),
        "optimizer": span(1.0, 1.0),
    }
    assert first == {**known, "report": span(1.0)}
    assert rest[0] == {**known, "report": span(1.0, 1.0)}
    assert trainer.spans_s == {
        "wait": 10.0,
        "forward": 10.0,
        "backward": 10.0,
        "optimizer": 5.0,
        "report": 5.0,
    }
    assert trainer.spans.whole["report"].num_steps == 5


def test_the_spans_of_a_window_fit_into_the_time_its_records_took():
    sink, clock = FakeSink(), HostClock()
    train = FakeLoader(make_data(40), 4, clock)
    trainer = make_trainer(train=train, clock=clock, sinks=[sink], report_every=5)
    trainer.fit()
    for report in sink.reports:
        window_s = 5 * 4 / report.records_per_s
        in_steps_s = sum(span.total_s for name, span in report.spans.items() if name != "report")
        assert in_steps_s <= window_s * (1 + 1e-9)
    assert trainer.pace.train_s == pytest.approx(
        sum(5 * 4 / report.records_per_s for report in sink.reports)
    )


def test_a_report_says_how_far_it_is_to_the_end_of_the_epoch_and_of_the_run():
    sink = FakeSink()
    make_trainer(make_data(18), 4, sinks=[sink], epochs=2, report_every=2).fit()
    assert [report.epoch_left for report in sink.reports] == [10, 2, 0, 14, 6, 0]
    assert all(report.left_s > 0 for report in sink.reports[:-1])
    assert sink.reports[-1].left_s == 0


def test_the_time_left_is_predicted_from_the_pace_of_this_run(monkeypatch):
    now, sink = [0.0], FakeSink()
    monkeypatch.setattr(framework.train.trainer.time, "perf_counter", lambda: now[0])
    three_seconds = lambda: now.__setitem__(0, now[0] + 3.0) or False  # noqa: E731  # a step
    parts = {"sinks": [sink], "stop": three_seconds}
    trainer = make_trainer(make_data(16), 4, epochs=5, report_every=1, **parts)
    trainer.load_state_dict(
        {
            **trainer.state_dict(),
            "progress": {"step": 4, "epoch": 1, "epoch_step": 0, "scheduled": 4},
        }
    )
    trainer.fit()
    assert [(report.step, report.left_s) for report in sink.reports][:2] == [(5, 45.0), (6, 42.0)]


def test_validation_has_spans_of_its_own():
    sink, clock = FakeSink(), FakeClock()
    make_trainer(
        make_data(8), 4, sinks=[sink], val=FakeLoader(make_data(12), 4, clock), val_clock=clock
    ).fit()
    (report,) = sink.of("val")
    assert report.spans == {name: span(1.0, 1.0, 1.0) for name in ("wait", "forward", "report")}


@pytest.mark.parametrize("clock", [HostClock, NoClock])
def test_a_clock_changes_nothing_that_is_learned(clock):
    sinks = FakeSink(), FakeSink()
    plain, timed = (
        make_trainer(sinks=sinks[:1], report_every=1),
        make_trainer(clock=clock(), sinks=sinks[1:], report_every=1),
    )
    plain.fit()
    timed.fit()
    assert [report.means for report in sinks[0].reports] == [
        report.means for report in sinks[1].reports
    ]
    assert same(weights(plain), weights(timed))


def test_with_the_clock_off_a_run_still_knows_its_speed():
    sink = FakeSink()
    trainer = make_trainer(make_data(18), 4, clock=NoClock(), sinks=[sink])
    trainer.fit()
    assert (trainer.spans.whole, sink.reports[0].spans, trainer.pace.num_records) == ({}, {}, 18)
    assert trainer.pace.train_s > 0


def test_validation_is_in_evaluation_mode_and_training_goes_on_in_training_mode():
    modes, classify = [], Classify("x", "y", 0.0)

    def objective(model, batch):
        modes.append((model.training, torch.is_grad_enabled()))
        return classify(model, batch)

    objective.better = classify.better
    parts = {"val": FakeLoader(make_data(4), 4), "objective": objective}
    make_trainer(make_data(8), 4, validate_every=1, **parts).fit()
    assert modes == [(True, True), (False, False), (True, True), (False, False)]


def test_validation_uses_the_average_if_there_is_one():
    seen, classify = [], Classify("x", "y", 0.0)

    def objective(model, batch):
        seen.append(weights(trainer))
        return classify(model, batch)

    objective.better = classify.better
    parts = {"val": FakeLoader(make_data(4), 4), "objective": objective}
    trainer = make_trainer(make_data(4), 4, ema=0.9, **parts)
    trainer.fit()
    assert same(seen[1], list(trainer.stepper.average.state_dict().values()))
    assert not same(seen[1], weights(trainer))


# ------------------------------------------------------------------------------------------- resume


def long_run(state=None, **parts):
    """Train with everything that has a state: dropout, momentum, an average and a schedule.

    An epoch has five steps, and the last one is short.
    """
    options = {
        "epochs": 3,
        "ema": 0.9,
        "schedule": OneCycle(0.3, 0.1),
        "report_every": 3,
        "checkpoints": FakeCheckpoints(),
    }
    order = {"shuffle": True, "accumulate": 2}
    val = FakeLoader(make_data(6), 4)
    trainer = make_trainer(
        make_data(18), 4, model=make_model(dropout=0.3), val=val, order=order, **options, **parts
    )
    if state is not None:
        trainer.load_state_dict(state)
    trainer.fit()
    return trainer


def last_state(trainer):
    """Return the last saved state without the time that training took."""
    state = trainer.parts.checkpoints.saved[-1][0]
    return {**state, "trained_s": 0.0}


@pytest.mark.parametrize("steps", [1, 4, 7, 13])
def test_a_run_stopped_within_an_epoch_and_resumed_ends_in_the_same_bits(steps):
    sinks = FakeSink(), FakeSink()
    whole = long_run(sinks=sinks[:1])
    first = long_run(sinks=sinks[1:], stop=stop_after(steps))
    second = long_run(last_state(first), sinks=sinks[1:])
    assert same(last_state(second), last_state(whole))
    assert [report.means for report in sinks[1].reports] == [
        report.means for report in sinks[0].reports
    ]


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_run_resumed_from_the_end_of_an_epoch_ends_in_the_same_bits(epoch):
    whole = long_run()
    second = long_run(whole.parts.checkpoints.saved[epoch][0])
    assert second.parts.train.started[0] == (epoch + 1, 0)
    assert same(last_state(second), last_state(whole))


def test_a_run_resumed_twice_ends_in_the_same_bits():
    first = long_run(stop=stop_after(3))
    second = long_run(last_state(first), stop=stop_after(4))
    third = long_run(last_state(second))
    assert (first.progress.step, second.progress.step) == (3, 7)
    assert same(last_state(third), last_state(long_run()))


def test_a_finished_run_that_is_resumed_takes_no_step():
    whole = long_run()
    again = long_run(last_state(whole))
    assert (again.parts.train.started, again.progress) == ([], whole.progress)
    assert same(weights(again), weights(whole))


def test_a_resumed_run_reports_seconds_per_step_of_its_own_steps():
    first, sink = long_run(stop=stop_after(3)), FakeSink()
    long_run(last_state(first), sinks=[sink])
    assert sink.reports[0].step == 5
    assert sink.reports[0].spans["optimizer"].mean_s == 1.0


def test_an_average_switched_on_when_resuming_starts_from_the_saved_weights():
    first = make_trainer(make_data(8), 4)
    first.fit()
    second = make_trainer(make_data(8), 4, ema=0.9)
    second.load_state_dict(first.state_dict())
    assert same(list(second.stepper.average.state_dict().values()), weights(first))


def test_a_rate_that_was_allowed_to_change_is_the_new_one():
    first = make_trainer(make_data(8), 4, momentum=0.9)
    first.fit()
    second = make_trainer(make_data(8), 4, momentum=0.5, epochs=2)
    second.load_state_dict(first.state_dict())
    assert second.stepper.optimizer.param_groups[0]["momentum"] == 0.5


# ------------------------------------------------------------------------------- numbers gone wrong


class Spoiled:
    """Classify, whose loss is ``value`` at the steps in ``steps`` (counted from 1)."""

    def __init__(self, *steps, value=float("nan")):
        self.steps, self.value, self.calls, self.inner = steps, value, 0, Classify("x", "y", 0.0)
        self.better = self.inner.better

    def __call__(self, model, batch):
        self.calls += model.training
        outcome = self.inner(model, batch)
        if model.training and self.calls in self.steps:
            outcome.loss = outcome.loss * self.value
        return outcome


def spoiled(*steps, model=None, **parts):
    return make_trainer(
        make_data(40), 4, model=model, objective=Spoiled(*steps), report_every=5, **parts
    )


def test_a_loss_that_is_none_ends_the_run_with_its_step_and_rate():
    with pytest.raises(
        NumericError, match=r"N101\]: step 3: the loss is nan at learning rate 0\.1;"
    ):
        spoiled(3).fit()


def test_the_records_of_the_bad_step_are_named():
    data = {**make_data(8), "index": torch.arange(8)}
    with pytest.raises(NumericError, match=r"step 2, records 4, 5, 6, 7: the loss is nan"):
        make_trainer(data, 4, objective=Spoiled(2), report_every=5).fit()


@pytest.mark.parametrize("bad", [4, 5])
def test_what_is_poisoned_is_never_saved(bad):
    checkpoints = FakeCheckpoints()
    with pytest.raises(NumericError):
        spoiled(bad, checkpoints=checkpoints, save_every=1).fit()
    assert [state["progress"]["step"] for state, _, _ in checkpoints.saved] == list(range(1, bad))


def test_a_bad_step_that_is_left_out_changes_nothing():
    whole, sink = spoiled(4, skip_bad=True, sinks=[FakeSink()]), FakeSink()
    whole.fit()
    assert (whole.progress.step, whole.progress.scheduled, whole.progress.missed) == (10, 9, 0)
    some = spoiled(4, skip_bad=True, max_steps=4, sinks=[sink])
    some.fit()
    assert same(weights(some), weights(_three_steps()))
    assert sink.reports[0].skipped == 1
    assert math.isfinite(sink.reports[0].means["loss"])


def test_a_bad_step_that_was_left_out_does_not_come_back_with_a_state():
    straight, checkpoints = FakeSink(), FakeCheckpoints()
    spoiled(4, skip_bad=True, sinks=[straight], checkpoints=checkpoints, save_every=1).fit()
    state = next(state for state, _, _ in checkpoints.saved if state["progress"]["step"] == 4)
    sink = FakeSink()
    resumed = spoiled(skip_bad=True, sinks=[sink])
    resumed.load_state_dict(state)
    resumed.fit()
    assert [report.means for report in sink.reports] == [
        report.means for report in straight.reports
    ]


class DrawingSink(FakeSink):
    """Chooses by chance what to show."""

    def write(self, report):
        torch.randperm(8)
        random.random()
        super().write(report)


def test_what_a_sink_draws_changes_nothing():
    states = []
    for sink in (FakeSink(), DrawingSink()):
        torch.manual_seed(3)
        random.seed(3)
        trainer = make_trainer(make_data(40), 4, max_steps=3, sinks=[sink], report_every=1)
        trainer.fit()
        assert len(sink.reports) >= 3
        states.append(trainer.state_dict()["generators"])
    assert all(torch.equal(state, other) for state, other in zip(*states, strict=True))


def _three_steps():
    trainer = make_trainer(make_data(40), 4, max_steps=3)
    trainer.fit()
    return trainer


def test_statistics_that_a_bad_batch_has_changed_are_put_back():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    data = make_data(12)
    data["x"][8:] = float("nan")
    trainer = make_trainer(data, 4, model=model, skip_bad=True)
    trainer.fit()
    assert trainer.progress.scheduled == 2
    assert all(bool(torch.isfinite(buffer).all()) for buffer in model.buffers())


def test_too_many_bad_steps_in_a_row_end_the_run():
    with pytest.raises(
        NumericError, match=r"N102\]: step 5: the gradients of 3 steps in a row were not finite"
    ):
        spoiled(1, 3, 4, 5, skip_bad=True, max_missed=2).fit()


# --------------------------------------------------------------------------------- synchronizations


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_norm": 0.1, "ema": 0.9},
        {"order": {"accumulate": 3}},
        {"clock": HostClock(), "val_clock": HostClock()},
    ],
)
def test_between_two_reports_no_number_is_read(options):
    counts, reads = [], Reads()
    options["stop"] = lambda: counts.append(reads.count) or False
    trainer = make_trainer(make_data(40), 4, report_every=100, **options)
    with reads:
        trainer.fit()
        torch.ones(()).item()
    assert counts == [0] * 10
    assert reads.count > 0


class Seen(Exception):
    """A number was read."""


@pytest.mark.parametrize(
    "name", ["item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"]
)
def test_numbers_are_read_in_reports_only(name, monkeypatch):
    def read(tensor, *_):
        raise Seen

    monkeypatch.setattr(torch.Tensor, name, read)
    trainer = make_trainer(make_data(40), 4, report_every=9, clip_norm=0.1, ema=0.9)
    trainer._report = lambda: None
    trainer.fit()
    with pytest.raises(Seen):
        getattr(torch.ones(()), name)()


def test_a_device_whose_numbers_cannot_be_read_is_trained_on_until_the_first_report():
    meta = torch.device("meta")
    model, data = make_model().to(meta), make_data(40)
    trainer = make_trainer(
        data,
        model=model,
        train=FakeLoader(data, 4, device=meta),
        report_every=7,
        clip_norm=0.1,
        ema=0.9,
    )
    with pytest.raises(NotImplementedError, match="meta"):
        trainer.fit()
    assert trainer.progress.step == 7


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_between_two_reports_cuda_is_never_synchronized():
    cuda = torch.device("cuda")
    data = {name: values.to(cuda) for name, values in make_data(8).items()}
    clock, plan = make_clock(cuda), {"epochs": 9, "report_every": 100, "clip_norm": 0.1}
    trainer = make_trainer(data, 8, model=make_model().to(cuda), clock=clock, ema=0.9, **plan)
    trainer.parts.train.epoch = lambda epoch, start=0: (
        part for part in [MicroBatch(data, 1.0, last=True)]
    )
    trainer._report = clock.spans
    try:
        torch.cuda.set_sync_debug_mode("error")
        trainer.fit()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.progress.step == 9


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_cuda_is_synchronized_in_reports_only_and_as_often_as_they_come():
    def synchronizations(report_every):
        cuda = torch.device("cuda")
        clock = make_clock(cuda)
        train = FakeLoader(
            {name: values.to(cuda) for name, values in make_data(48).items()}, 4, clock, device=cuda
        )
        train.epoch = lambda epoch, start=0: (
            MicroBatch(batch, 1.0, last=True) for batch in [train.data] * 12
        )
        trainer = make_trainer(
            train=train, model=make_model().to(cuda), clock=clock, report_every=report_every
        )
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                trainer.fit()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return len(caught)

    synchronizations(12)  # the first run loads libraries
    once = synchronizations(12)
    assert [synchronizations(6), synchronizations(4)] == [2 * once, 3 * once]


# -------------------------------------------------------------------- several sets and what is best


def sets(**values):
    """Return a validation set for each name, whose loss is the given value."""
    return {name: FakeLoader({"value": torch.tensor([value])}, 1) for name, value in values.items()}


def test_each_validation_set_is_reported_as_a_split_of_its_own():
    sink = FakeSink()
    trainer = make_trainer(
        {"value": torch.ones(2)}, 1, objective=MeanValue(), val=sets(a=2.0, b=5.0), sinks=[sink]
    )
    trainer.fit()
    assert [report.means["loss"] for report in sink.of("val.a")] == [2.0]
    assert [report.means["loss"] for report in sink.of("val.b")] == [5.0]
    assert trainer.val_means == {"a.loss": 2.0, "a.total": 2.0, "b.loss": 5.0, "b.total": 5.0}
    assert trainer.best == {**trainer.val_means, "step": 2}


@pytest.mark.parametrize(
    ("best", "step"), [(None, 1), (Goal("b.loss", False), 2), (Goal("total", True), 3)]
)
def test_the_first_set_or_a_metric_decides_what_is_best(best, step):
    val = sets(a=1.0, b=9.0)
    values = iter([(2.0, 3.0), (4.0, 1.0), (6.0, 7.0)])  # after each step

    def stop():
        for name, value in zip(val, next(values), strict=True):
            val[name].data["value"].fill_(value)
        return False

    parts = {"objective": MeanValue(), "val": val, "best": best, "stop": stop}
    trainer = make_trainer({"value": torch.ones(3)}, 1, validate_every=1, **parts)
    trainer.fit()
    assert trainer.best["step"] == step


def test_a_best_metric_that_no_validation_has_ends_the_run_with_the_names():
    val = FakeLoader(make_data(6), 4)
    trainer = make_trainer(val=val, best=Goal("f1", True))
    with pytest.raises(ConfigError, match=r"C331.*best\.metric = f1.*use loss, accuracy"):
        trainer.fit()


def test_an_array_of_the_objective_is_reported():
    def objective(model, batch):
        outcome = Classify("x", "y", 0.0)(model, batch)
        outcome.sums["ones"] = torch.ones(2, 2) * outcome.count
        return outcome

    objective.better = lambda new, old: True
    sink = FakeSink()
    make_trainer(make_data(10), 4, objective=objective, sinks=[sink], report_every=2).fit()
    assert [report.arrays["ones"].sum() for report in sink.of("train")] == [32, 8]


# ----------------------------------------------------------------------------------------- watchers


class Looks(Watcher):
    """Remembers the calls, and wants to stop at the call ``at``."""

    def __init__(self, at=None):
        self.at = at
        self.calls = []

    def _called(self, name, moment):
        self.calls.append((name, moment.step))
        self.newest = moment
        return "enough" if (name, moment.step) == self.at else None

    def after_report(self, moment):
        assert moment.report.step == moment.step
        return self._called("report", moment)

    def after_validation(self, moment):
        assert "accuracy" in moment.metrics
        return self._called("validation", moment)

    def after_save(self, moment):
        return self._called("save", moment)

    def at_end(self, moment):
        self._called("end", moment)


def watched(*watchers, epochs=2, **parts):
    """Return a Trainer over epochs of five steps that the watchers see."""
    named = {f"watchers.{number}": watcher for number, watcher in enumerate(watchers)}
    watching = Watching(named, NoParallel(device=CPU))
    checkpoints = parts.pop("checkpoints", FakeCheckpoints())
    data, val = make_data(20), FakeLoader(make_data(6), 4)
    given = {"checkpoints": checkpoints, "watching": watching, **parts}
    return make_trainer(data, 4, epochs=epochs, val=val, report_every=2, **given)


def test_a_watcher_sees_reports_validations_saves_and_the_end():
    looks = Looks()
    watched(looks, epochs=1).fit()
    assert looks.calls == [
        ("report", 2),
        ("report", 4),
        ("report", 5),
        ("validation", 5),
        ("save", 5),
        ("end", 5),
    ]
    assert (looks.newest.status, looks.newest.reason, looks.newest.epoch) == ("finished", "", 1)


def test_a_reason_after_a_report_ends_the_run_with_the_next_step_validated_and_saved():
    looks = Looks(at=("report", 2))
    trainer = watched(looks)
    trainer.fit()
    assert (trainer.progress.step, trainer.ended, trainer.stopped) == (3, "enough", False)
    assert looks.calls[1:] == [("report", 3), ("validation", 3), ("save", 3), ("end", 3)]
    state, kept, best = trainer.parts.checkpoints.saved[-1]
    assert (state["ended"], kept is not None, best) == ("enough", True, True)
    assert trainer.parts.checkpoints.finals == [True]
    assert (looks.newest.status, looks.newest.reason) == ("finished", "enough")


def test_a_reason_after_a_validation_ends_the_run_at_once():
    trainer = watched(Looks(at=("validation", 5)), epochs=3)
    trainer.fit()
    assert (trainer.progress.step, trainer.ended) == (5, "enough")
    assert len(trainer.parts.checkpoints.saved) == 1


def test_a_reason_at_the_very_last_step_ends_nothing_early():
    trainer = watched(Looks(at=("validation", 10)))
    trainer.fit()
    assert (trainer.progress.step, trainer.ended) == (10, "")


def test_a_signal_beside_a_reason_leaves_the_run_finished():
    trainer = watched(Looks(at=("validation", 5)), stop=stop_after(5), validate_every=5)
    trainer.fit()
    assert (trainer.ended, trainer.stopped) == ("enough", False)


def test_an_interrupted_run_says_so_at_its_end():
    looks = Looks()
    watched(looks, stop=stop_after(3)).fit()
    assert (looks.newest.status, looks.calls[-1]) == ("interrupted", ("end", 3))


def test_a_run_that_has_ended_early_takes_no_step_when_it_is_resumed():
    first = watched(Looks(at=("validation", 5)))
    first.fit()
    second = watched(Looks())
    second.load_state_dict(first.parts.checkpoints.saved[-1][0])
    second.fit()
    assert (second.parts.train.started, second.ended) == ([], "enough")


def resumed_after(steps, make):
    """Stop a run after so many steps, and return another one that has continued it."""
    first = make(stop=stop_after(steps))
    first.fit()
    second = make()
    second.load_state_dict(first.parts.checkpoints.saved[-1][0])
    second.fit()
    return second


@pytest.mark.parametrize("steps", [2, 5, 7, 10, 14])
def test_patience_goes_on_in_a_resumed_run(steps):
    def make(**parts):
        stop = EarlyStop(2, Goal("loss", False, "stop.metric"))
        return watched(stop, epochs=9, lr=0.0, **parts)

    whole = make()
    whole.fit()
    second = resumed_after(steps, make)
    assert (whole.progress.step, second.progress.step) == (15, 15)
    assert second.ended == whole.ended
    assert "after step 5" in whole.ended


class Clock:
    """A clock that a test moves, and that never stands still."""

    now = 0.0

    def perf_counter(self):
        self.now += 1e-9
        return self.now


@pytest.mark.parametrize("steps", [1, 4, 5, 6, 8])
def test_the_time_budget_goes_on_in_a_resumed_run(steps, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("framework.train.pace.time", clock)

    def make(stop=never):
        def tick():
            clock.now += 1  # a step takes a second
            return stop()

        return watched(TimeBudget(7.0), stop=tick)

    second = resumed_after(steps, make)
    assert (second.progress.step, second.ended) == (9, "it has trained for 8 s (at most 7 s)")


def test_the_trainer_is_a_page_to_read():
    text = Path(framework.train.trainer.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300


def test_the_trainer_knows_no_more_than_its_contracts():
    text = Path(framework.train.trainer.__file__).read_text(encoding="utf-8")
    words = (
        ".to(",
        ".module",
        "GradScaler",
        "dtype",
        "torch.cuda",
        "os.environ",
        "cfg",
        "tensorboard",
        "accuracy",
        ".item(",
        "synchronize",
    )
    assert [word for word in words if word in text] == []
