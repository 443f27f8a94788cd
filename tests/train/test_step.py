from dataclasses import replace

import pytest
import torch
from torch import nn

from framework.errors import NumericError
from framework.objective.classify import Classify
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.schedule.cosine import Cosine
from framework.schedule.plateau import Plateau
from framework.schedule.torch_schedule import TorchSchedule
from framework.train.ema import Average
from framework.train.metrics import Progress, TrainPlan
from framework.train.step import Passes, Stepper, drop_gradients
from tests.fakes import CPU, FakeClock, SkippingPrecision, make_data, make_model


def make(precision=None, average=None, lr=0.1, first=nn.Linear, **plan):
    torch.manual_seed(0)
    model = nn.Sequential(first(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 10 * lr}], lr=lr
    )
    average = None if average is None else Average(model, average)
    return Stepper(
        TrainPlan(1, **plan),
        model,
        optimizer,
        Cosine(0.0, 0.0),
        precision or FP32(False, device=CPU),
        average,
    )


def learn(stepper, progress, value=1.0, count=3):
    stepper.model(torch.full((count, 2), value) * torch.rand(count, 2)).sum().backward()
    stepper.step(progress, 10)
    progress.step += 1


def test_gradients_are_dropped_after_a_step():
    stepper, progress = make(), Progress()
    learn(stepper, progress)
    assert [parameter.grad for parameter in stepper.model.parameters()] == [None] * 4


def test_an_optimizer_may_drop_gradients_in_its_own_way():
    class Keeping(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            self.asked = set_to_none

    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = Keeping([parameter])
    drop_gradients(optimizer)
    assert optimizer.asked
    assert parameter.grad is not None


def test_every_group_follows_the_schedule_from_its_own_rate():
    stepper, progress = make(), Progress()
    rates = []
    for _ in range(3):
        learn(stepper, progress)
        rates.append([group["lr"] for group in stepper.optimizer.param_groups])
    assert rates[0] == [0.1, 1.0]
    assert all(second == pytest.approx(10 * first) for first, second in rates)
    assert rates[2][0] < rates[1][0] < rates[0][0]
    assert stepper.rate == rates[2][0]


def test_a_group_stops_after_its_share_of_the_steps():
    stepper, progress = make(), Progress()
    groups = stepper.optimizer.param_groups
    groups[1]["until"] = 0.3
    stepper = replace(stepper)
    rates, biases = [], []
    for _ in range(5):
        learn(stepper, progress)
        rates.append(groups[1]["lr"])
        biases.append(stepper.model[1].bias.tolist())
    assert [rate > 0 for rate in rates] == [True, True, True, False, False]
    assert biases[1] != biases[2] == biases[3] == biases[4]
    assert groups[0]["lr"] > 0


def test_lookahead_moves_the_weights_and_what_a_skipped_step_puts_back():
    stepper = make(skip_bad=True)
    average = Average(stepper.model, 0.5, every=2, lookahead=True)
    stepper, progress = replace(stepper, average=average), Progress()
    for _ in range(2):
        learn(stepper, progress)
    state = {name: value.clone() for name, value in stepper.model.state_dict().items()}
    assert all(torch.equal(state[name], own) for name, own in average.state_dict().items())
    learn(stepper, progress, float("nan"))
    assert progress.missed == 1
    assert all(torch.equal(state[name], own) for name, own in stepper.model.state_dict().items())


def test_gradients_are_gone_after_the_step():
    stepper = make()
    learn(stepper, Progress())
    assert all(parameter.grad is None for parameter in stepper.model.parameters())


def test_a_step_that_was_left_out_is_counted_and_takes_no_place_in_the_schedule():
    stepper, progress = make(SkippingPrecision(0, 1)), Progress()
    for _ in range(3):
        learn(stepper, progress)
    assert (progress.scheduled, progress.missed, stepper.rate) == (1, 0, 0.1)


def test_too_many_in_a_row_are_an_error():
    stepper, progress = make(SkippingPrecision(1, 2, 3), max_missed=2), Progress()
    for _ in range(3):
        learn(stepper, progress)
    with pytest.raises(NumericError, match="N102"):
        learn(stepper, progress)


def test_the_average_is_evaluated_and_kept_if_there_is_one():
    plain, stepper = make(), make(average=0.5)
    for each in (plain, stepper):
        learn(each, Progress())
    assert plain.weights().keys() == stepper.weights().keys()
    assert torch.equal(plain.weights()["0.weight"], plain.model[0].weight)
    assert not torch.equal(stepper.weights()["1.bias"], stepper.model[1].bias)
    kept = stepper.weights()["1.bias"].clone()
    with stepper.averaged(), plain.averaged():
        assert torch.equal(stepper.model[1].bias, kept)


def test_a_state_comes_back():
    first, second, progress = make(average=0.5), make(average=0.5), Progress()
    learn(first, progress)
    second.load_state_dict(first.state_dict())
    restored, expected = second.state_dict(), first.state_dict()
    assert all(
        torch.equal(restored[part][name], value)
        for part in ("model", "average")
        for name, value in expected[part].items()
    )


def test_bad_gradients_leave_weights_average_and_statistics_as_they_were():
    stepper, progress = make(average=0.5, skip_bad=True), Progress()
    learn(stepper, progress)
    before = [
        value.clone()
        for part in (stepper.model.state_dict(), stepper.weights())
        for value in part.values()
    ]
    learn(stepper, progress, value=float("nan"))
    after = [
        value for part in (stepper.model.state_dict(), stepper.weights()) for value in part.values()
    ]
    assert all(map(torch.equal, after, before))
    assert (progress.scheduled, progress.missed) == (1, 1)


class Remembering(nn.Linear):
    """A layer that keeps its last input and its number of calls in buffers.

    It has the buffers only after its first call, and the length of the input changes.
    """

    def forward(self, value):
        self.register_buffer("newest", value.detach())
        self.register_buffer("calls", getattr(self, "calls", torch.zeros(())) + 1)
        return super().forward(value)


def test_buffers_may_come_late_and_change_their_shape():
    stepper, progress = make(skip_bad=True, first=Remembering), Progress()
    for count, value in ((4, 1.0), (2, 1.0), (2, float("nan"))):
        learn(stepper, progress, value=value, count=count)
    first = stepper.model[0]
    assert (progress.missed, float(first.calls), len(first.newest)) == (1, 2.0, 2)


def test_gradients_of_passes_add_up_by_their_weights():
    model, data, clock = make_model(), make_data(6), FakeClock()
    passes = Passes(
        model,
        Classify("x", "y", 0.0),
        NoParallel(device=CPU),
        FP32(tf32=False, device=CPU),
        clock.mark,
    )
    whole = torch.autograd.grad(passes.objective(model, data).loss, list(model.parameters()))
    for part, last in ((slice(0, 2), False), (slice(2, 6), True)):
        count = part.stop - part.start
        outcome = passes({name: tensor[part] for name, tensor in data.items()}, count / 6, last)
        assert outcome.count == count
    for parameter, gradient in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert clock.marks == ["forward", "backward"] * 2


class OfRankZero:
    """Ranks of which the first one has found something else."""

    def gather(self, values):
        return [torch.full_like(values, 7.0), values]


def test_a_schedule_follows_what_rank_0_has_found():
    stepper = make()
    plateau = Plateau("loss", "min", 0.5, 0, 0.0)
    stepper = replace(stepper, schedule=plateau)
    stepper.follow({"loss": 1.0}, OfRankZero())
    assert plateau.state_dict()["best"] == 7.0
    assert stepper.rate_changes == 0
    stepper.follow({"loss": 1.0}, OfRankZero())
    assert stepper.rate_changes == 1
    assert stepper.state_dict()["schedule"] == plateau.state_dict()
    stepper.forget_best()
    assert plateau.state_dict()["best"] == float("inf")


def test_a_scheduler_of_torch_sets_rates_by_step_or_by_epoch():
    for per, expected in (("step", [0.1, 0.05, 0.025]), ("epoch", [0.1, 0.1, 0.05])):
        stepper = make()
        setter = TorchSchedule(
            lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
            stepper.optimizer,
            per,
            "StepLR",
        )
        stepper, progress, rates = replace(stepper, setter=setter), Progress(), []
        for number in range(3):
            progress.epoch = number // 2
            learn(stepper, progress)
            rates.append(stepper.rate)
        assert rates == expected
        assert stepper.state_dict()["schedule"] == setter.state_dict()
