"""Steps in phases: each takes all passes, and updates its own part."""

import pytest
import torch
from torch import nn

from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.precision.amp import AMP
from framework.schedule.cosine import Cosine
from tests.fakes import CPU, FakeSink, SkippingPrecision, make_data
from tests.train.counted import weights_of
from tests.train.phased import Duel, Pair, duel, optimizer_of


def plain_loop(clip_norm, batch_size=4, epochs=2):
    """Return the weights that a plain loop learns."""
    model, objective = Pair(), Duel()
    parts = optimizer_of(model).parts
    data = make_data(18)
    for _ in range(epochs):
        for places in torch.arange(18).split(batch_size):
            batch = {name: values[places] for name, values in data.items()}
            for phase in Duel.phases:
                model.zero_grad()
                objective(model, batch, phase).loss.backward()
                if clip_norm is not None:
                    nn.utils.clip_grad_norm_(getattr(model, phase).parameters(), clip_norm)
                parts[phase].step()
    return weights_of(model)


@pytest.mark.parametrize("clip_norm", [None, 0.01])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_learns_what_a_plain_loop_learns(accumulate, clip_norm):
    trainer = duel(order={"accumulate": accumulate}, epochs=2, clip_norm=clip_norm)
    trainer.fit()
    expected = plain_loop(clip_norm)
    assert weights_of(trainer.parts.model) == pytest.approx(expected, rel=1e-9)
    assert all(weight.grad is None for weight in trainer.parts.model.parameters())


def test_what_counts_weighs_alike_in_every_cut():
    learned = []
    for accumulate in (1, 3):
        data = make_data(18)
        data["y"][:2] = 0  # of some passes nothing counts
        trainer = duel(data, Duel(counts=True), order={"accumulate": accumulate}, epochs=3)
        trainer.fit()
        learned.append(weights_of(trainer.parts.model))
    assert learned[0] == pytest.approx(learned[1], rel=1e-9)


def test_a_report_has_the_losses_sums_and_rates_of_all_phases():
    sink = FakeSink()
    trainer = duel(batch_size=6, order={"accumulate": 2}, report_every=3)
    for group, part in zip(trainer.stepper.optimizer.param_groups, Duel.phases, strict=True):
        group["name"] = part
    trainer.stepper.__post_init__()
    trainer.fit([sink])
    report = sink.reports[0]
    assert report.means["loss"] == pytest.approx(report.means["judge"] + report.means["made"])
    assert {"judge_says", "made_says"} < report.means.keys()
    assert report.rates == {"judge": 0.1, "made": 0.01}
    assert report.records_per_s > 0


def test_schedule_average_and_clock_count_a_step_once():
    parts = {"order": {"accumulate": 2}, "schedule": Cosine(0.0, 0.0), "ema": 0.5}
    trainer = duel(batch_size=9, report_every=100, **parts)
    calls = []
    trainer.parts.average.update = calls.append
    trainer.fit()
    progress = trainer.progress
    assert (progress.step, progress.scheduled, calls) == (2, 2, [0.5, 0.5])
    phase = ["forward", "backward"] * 2 + ["optimizer"]
    assert trainer.parts.clock.marks[:11] == [*phase, *phase, "report"]


def test_a_step_counts_only_if_every_part_was_updated():
    trainer = duel(precision=SkippingPrecision(1, 2), batch_size=9)
    trainer.fit()
    assert (trainer.progress.step, trainer.progress.scheduled) == (2, 0)


def test_the_scale_of_small_gradients_changes_once_a_step():
    precision = AMP("fp16", device=CPU)
    precision.load_state_dict({**precision.state_dict(), "scale": 2.0})  # nothing overflows
    trainer = duel(precision=precision, batch_size=9)
    trainer.parts.model.float()
    for name, values in trainer.parts.train.data.items():
        if values.is_floating_point():
            trainer.parts.train.data[name] = values.float()
    trainer.fit()
    assert precision.state_dict()["_growth_tracker"] == trainer.progress.scheduled == 2


class SameName(Duel):
    def __call__(self, model, batch, phase=None):
        return Outcome(super().__call__(model, batch, phase).loss, {"says": torch.tensor(1.0)})


class SomeCount(Duel):
    def __call__(self, model, batch, phase=None):
        outcome = super().__call__(model, batch, phase)
        outcome.count = 2 if phase == "made" else None
        return outcome


@pytest.mark.parametrize("objective", [SameName(), SomeCount()])
def test_phases_that_do_not_fit_together_are_refused(objective):
    with pytest.raises(ConfigError, match="C220"):
        duel(objective=objective).fit()
