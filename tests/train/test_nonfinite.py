"""Overflows, NaN and infinity: what is skipped, what ends a run, and what is never saved."""

import math

import pytest
import torch
from torch import nn

from framework.errors import DistributedError, NumericError
from framework.objective.classify import Classify
from framework.precision.amp import AMP
from framework.train.metrics import PassPlace
from framework.train.step import all_finite, infinite_buffers, nonfinite_error
from tests import fakes
from tests.train.states import average, same, weights


class Spoiled:
    """Classify, whose loss is multiplied by ``factor`` at ``steps``, which count from 1."""

    def __init__(self, *steps, factor=math.nan):
        self.steps = steps
        self.factor = factor
        self.calls = 0
        self.inner = Classify("x", "y", 0.0)
        self.better = self.inner.better

    def __call__(self, model, batch):
        self.calls += model.training
        outcome = self.inner(model, batch)
        if model.training and self.calls in self.steps:
            outcome.loss = outcome.loss * self.factor
        return outcome


def spoiled(*steps, **parts):
    objective = Spoiled(*steps)
    return fakes.make_trainer(fakes.make_data(40), 4, objective=objective, report_every=5, **parts)


@pytest.mark.parametrize(("steps", "moves"), [(1, False), (2, True)])
def test_an_overflow_of_half_precision_moves_nothing_and_the_next_step_does(steps, moves):
    amp = AMP("fp16", device=fakes.CPU)
    parts = {"precision": amp, "objective": Spoiled(1, factor=1e38), "ema": 0.5}
    model = fakes.make_model(torch.float32)
    trainer = fakes.make_trainer(
        fakes.make_data(8, torch.float32), model=model, max_steps=steps, **parts
    )
    before = weights(trainer)
    trainer.fit()
    assert same(weights(trainer), before) is not moves
    assert same(average(trainer), before) is not moves
    assert trainer.progress.scheduled == steps - 1
    assert amp.state_dict()["scale"] == 2.0**15


def test_a_bad_step_that_is_skipped_changes_nothing():
    sink, undisturbed = fakes.FakeSink(), fakes.make_trainer(fakes.make_data(40), 4, max_steps=3)
    trainer = spoiled(4, skip_bad=True, max_steps=4, sinks=[sink])
    for own in (trainer, undisturbed):
        own.fit()
    assert same(weights(trainer), weights(undisturbed))
    assert sink.reports[0].skipped == 1
    assert math.isfinite(sink.reports[0].means["loss"])


def test_statistics_that_a_bad_batch_has_changed_are_restored():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    data = fakes.make_data(12)
    data["x"][8:] = math.nan
    trainer = fakes.make_trainer(data, 4, model=model, skip_bad=True)
    trainer.fit()
    assert trainer.progress.scheduled == 2
    assert all(bool(torch.isfinite(buffer).all()) for buffer in model.buffers())


def test_too_many_bad_steps_in_a_row_end_the_run():
    what = r"N102\]: step 5: the gradients of 3 steps in a row were not finite"
    with pytest.raises(NumericError, match=what):
        spoiled(1, 3, 4, 5, skip_bad=True, max_missed=2).fit()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run_with_its_step_records_and_rate(value):
    data = {"value": torch.tensor([1.0, 1.0, value, 1.0]), "index": torch.arange(4)}
    trainer = fakes.make_trainer(data, 1, objective=fakes.MeanValue(), report_every=2)
    what = r"N101\]: step 3, records 2: the loss is (nan|inf) at learning rate 0\.1; "
    with pytest.raises(NumericError, match=what):
        trainer.fit()


@pytest.mark.parametrize("bad", [4, 5])
def test_a_poisoned_state_is_never_saved(bad):
    checkpoints = fakes.FakeCheckpoints()
    with pytest.raises(NumericError):
        spoiled(bad, checkpoints=checkpoints, save_every=1).fit()
    assert [state["progress"]["step"] for state, _, _ in checkpoints.saved] == list(range(1, bad))


class Ranks:
    """Rank ``rank`` of ranks that met their first bad loss at ``steps``."""

    def __init__(self, rank, steps):
        self.rank = rank
        self.steps = steps

    def gather(self, values):
        return [torch.tensor([step]) for step in self.steps]


@pytest.mark.parametrize(
    ("steps", "speaker"),
    [((math.inf, 7.0), 1), ((7.0, 7.0), 0), ((9.0, 7.0, 8.0), 1), ((math.inf, math.inf), 0)],
)
def test_the_rank_that_met_the_first_bad_loss_names_it(steps, speaker):
    ranks = [Ranks(rank, steps) for rank in range(len(steps))]
    errors = [nonfinite_error("the loss is nan", 10, PassPlace(7, None), rank) for rank in ranks]
    kinds = [NumericError if rank == speaker else DistributedError for rank in range(len(steps))]
    assert [type(error) for error in errors] == kinds
    assert str(errors[speaker]).startswith("error[N101]: step 7: the loss is nan; ")


def test_buffers_that_were_infinite_at_the_start_may_stay_so():
    model = nn.BatchNorm1d(2)
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    design = infinite_buffers(model)
    assert design == {"mask": False}
    assert all_finite(model, design)
    assert not all_finite(model, {})
    model.mask[0] = math.nan
    assert not all_finite(model, design)
    assert infinite_buffers(model) == {"mask": True}  # it was not set from the start
    assert all_finite(model, {"mask": True})
    model.running_mean.fill_(math.nan)
    assert not all_finite(model, {"mask": True})
