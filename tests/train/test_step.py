"""One step: rates, averages, skipped steps, and what counts weighs."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.classify import Classify
from framework.parallel.none import NoParallel
from framework.precision.amp import AMP
from framework.precision.fp32 import FP32
from framework.schedule import cosine, torch_schedule
from framework.schedule.plateau import Plateau
from framework.train import metrics, weights
from framework.train.step import CountWeights, Passes, Stepper
from tests import fakes
from tests.parallel.launching import of_two_ranks
from tests.train import counted, states


def make(precision=None, lr=0.1, **plan):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 10 * lr}]
    optimizer = torch.optim.SGD(groups, lr=lr)
    precision = precision or FP32(False, device=fakes.CPU)
    counts = CountWeights(NoParallel(device=fakes.CPU), optimizer)
    plan = metrics.TrainPlan(1, **plan)
    return Stepper(plan, model, optimizer, cosine.Cosine(0.0, 0.0), precision, None, counts)


def learn(stepper, progress, value=1.0):
    stepper.model(torch.full((3, 2), value) * torch.rand(3, 2)).sum().backward()
    stepper.step(progress, 10)
    progress.step += 1


def state_of(stepper):
    return copy.deepcopy([stepper.model.state_dict(), stepper.weights()])


def test_gradients_of_passes_add_up_by_their_weights():
    model, data, clock = fakes.make_model(), fakes.make_data(6), fakes.FakeClock()
    parallel = NoParallel(device=fakes.CPU)
    counts = CountWeights(parallel, torch.optim.SGD(model.parameters()))
    parts = parallel, FP32(tf32=False, device=fakes.CPU), counts, clock.mark
    passes = Passes(model, Classify("x", "y", 0.0), *parts)
    whole = torch.autograd.grad(passes.objective(model, data).loss, list(model.parameters()))
    for part, last in ((slice(0, 2), False), (slice(2, 6), True)):
        count = part.stop - part.start
        batch = {name: tensor[part] for name, tensor in data.items()}
        assert passes(batch, count / 6, last).count == count
    counts.rescale()
    for parameter, gradient in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert clock.marks == ["forward", "backward"] * 2


def test_every_group_follows_the_schedule_from_its_own_rate():
    stepper, progress, rates = make(), metrics.Progress(), []
    for _ in range(3):
        learn(stepper, progress)
        rates.append([group["lr"] for group in stepper.optimizer.param_groups])
    assert rates[0] == [0.1, 1.0]
    assert all(second == pytest.approx(10 * first) for first, second in rates)
    assert rates[2][0] < rates[1][0] < rates[0][0]
    assert stepper.rate == rates[2][0]


def test_the_rate_of_each_group_is_reported_by_its_name():
    model, sink = fakes.make_model(), fakes.FakeSink()
    first, *rest = model.parameters()
    groups = [{"params": [first], "name": "head", "lr": 0.5}, {"params": rest, "until": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.25)
    parts = {"model": model, "optimizer": optimizer, "report_every": 1, "sinks": [sink]}
    fakes.make_trainer(fakes.make_data(8), 4, schedule=lambda n, _: 1 / (1 + n), **parts).fit()
    reported = [dict(report.rates) for report in sink.of("train")]
    assert reported == [{"head": 0.5, "group 1": 0.25}, {"head": 0.25, "group 1": 0.0}]
    for group, rate in zip(optimizer.param_groups, (0.5, 0.25), strict=True):
        group.update(name="head", lr=rate)
    names = fakes.make_trainer(fakes.make_data(8), 4, **parts).stepper.rates_by_name
    assert names == {"head": 0.5, "head, group 1": 0.25}
    sink = fakes.FakeSink()
    fakes.make_trainer(fakes.make_data(4), 4, sinks=[sink]).fit()
    assert [report.rates for report in sink.of("train")] == [{}]


def test_a_group_stops_after_its_share_of_the_steps():
    stepper, progress = make(), metrics.Progress()
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


def test_a_skipped_step_is_counted_and_takes_no_place_in_the_schedule():
    stepper, progress = make(fakes.SkippingPrecision(0, 1)), metrics.Progress()
    for _ in range(3):
        learn(stepper, progress)
    assert (progress.scheduled, progress.missed, stepper.rate) == (1, 0, 0.1)


class OfRankZero:
    """Two ranks, of which the first one has another value."""

    def gather(self, values):
        return [torch.full_like(values, 7.0), values]


def test_a_schedule_follows_the_validation_of_rank_0():
    plateau = Plateau("loss", "min", 0.5, 0, 0.0)
    stepper = replace(make(), schedule=plateau)
    stepper.follow({"loss": 1.0}, OfRankZero())
    assert plateau.state_dict()["best"] == 7.0
    assert stepper.rate_changes == 0
    stepper.follow({"loss": 1.0}, OfRankZero())
    assert stepper.rate_changes == 1
    assert stepper.state_dict()["schedule"] == plateau.state_dict()
    stepper.forget_best()
    assert plateau.state_dict()["best"] == math.inf


@pytest.mark.parametrize(
    ("per", "expected"), [("step", [0.1, 0.05, 0.025]), ("epoch", [0.1, 0.1, 0.05])]
)
def test_a_scheduler_of_torch_sets_rates_by_step_or_by_epoch(per, expected):
    stepper = make()
    halving = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)  # noqa: E731
    setter = torch_schedule.TorchSchedule(halving, stepper.optimizer, per, "StepLR")
    stepper, progress, rates = replace(stepper, setter=setter), metrics.Progress(), []
    for number in range(3):
        progress.epoch = number // 2
        learn(stepper, progress)
        rates.append(stepper.rate)
    assert rates == expected
    assert stepper.state_dict()["schedule"] == setter.state_dict()


@pytest.mark.parametrize("lookahead", [False, True])
def test_bad_gradients_leave_weights_average_and_statistics_as_they_were(lookahead):
    stepper, progress = make(skip_bad=True), metrics.Progress()
    average = weights.Average(stepper.model, 0.5, every=1 + lookahead, lookahead=lookahead)
    stepper = replace(stepper, average=average)
    for _ in range(2):
        learn(stepper, progress)
    before = state_of(stepper)
    assert states.same(*before) is lookahead
    learn(stepper, progress, value=math.nan)
    assert states.same(state_of(stepper), before)
    assert (progress.scheduled, progress.missed) == (2, 1)


def one_weight(value=0.0):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def shift(model, by):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)


def test_an_update_keeps_the_decay_s_share_of_the_old_average_and_leaves_the_model_alone():
    model = one_weight(8.0)
    average = weights.Average(model, 0.75)
    shift(model, 4.0)
    average.update(average.decay)
    assert average.state_dict()["weight"].item() == 9.0
    assert model.weight.item() == 12.0


def test_lookahead_equals_a_sequence_by_hand():
    """Each second step keeps 0.5**2 of the average, and copies it into the weights."""
    model = one_weight(8.0)
    average = weights.Average(model, 0.5, every=2, lookahead=True)
    seen = []
    for step in range(1, 5):
        shift(model, 4.0)
        average.update_after(step, 4)
        seen.append((model.weight.item(), average.state_dict()["weight"].item()))
    # 16 and 8 make 0.75 * 16 + 0.25 * 8 = 14; 22 and 14 make 20
    assert seen == [(12.0, 8.0), (14.0, 14.0), (18.0, 14.0), (20.0, 20.0)]


def test_a_ramp_follows_the_weights_at_first():
    """What an update keeps is 0.5 * (step / 4)**3, as published with 0.95**5."""
    model = one_weight()
    average = weights.Average(model, 0.5, ramp=3.0)
    expected = 0.0
    for step in range(1, 5):
        shift(model, 1.0)
        average.update_after(step, 4)
        kept = 0.5 * (step / 4) ** 3
        expected = kept * expected + (1 - kept) * step
        assert average.state_dict()["weight"].item() == pytest.approx(expected)
    assert model.weight.item() == 4.0


def trained(data=None, order=None, **parts):
    parts = {"epochs": counted.EPOCHS, "report_every": 100, **parts}
    trainer = fakes.make_trainer(
        data or counted.half_labelled(), counted.BATCH_SIZE, order=order, **parts
    )
    trainer.fit()
    return trainer


@pytest.mark.parametrize("clip_norm", [None, 0.1], ids=["whole", "clipped"])
@pytest.mark.parametrize("accumulate", [1, 2, 4], ids=["one pass", "even", "uneven"])
def test_passes_learn_what_the_whole_batch_does(accumulate, clip_norm):
    trainer = trained(order={"accumulate": accumulate}, clip_norm=clip_norm)
    expected = counted.learned_by_a_plain_loop(clip_norm)
    assert counted.weights_of(trainer.parts.model) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "virtual", "uneven", "no count"])
def test_two_ranks_learn_what_one_does(kind, tmp_path_factory):
    data = fakes.make_data(24) if kind == "no count" else None
    expected = counted.learned_by_a_plain_loop(data=data)
    for rank in of_two_ranks("counted", tmp_path_factory):
        assert rank[kind] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_scaled_gradients_are_those_of_one_pass(dtype):
    taken = []
    for accumulate in (1, 4):
        cpu = {"device": fakes.CPU}
        precision = FP32(False, **cpu) if dtype == "fp32" else AMP(dtype, **cpu)
        data = counted.half_labelled()
        data["x"] = data["x"].float()
        model = fakes.make_model(torch.float32)
        trained(data, {"accumulate": accumulate}, model=model, precision=precision)
        taken.append(counted.weights_of(model))
    tolerance = 1e-5 if dtype == "fp32" else 0.02
    assert taken[1] == pytest.approx(taken[0], abs=tolerance)


class Tokens:
    """A mean over many more tokens than records, or of none."""

    def __init__(self, counts):
        self.counts = iter(counts)

    def __call__(self, model, batch):
        count = next(self.counts)
        losses = model(batch["x"]).square().sum(1)
        loss = losses.mean() if count else losses[:0].mean()
        return Outcome(loss, {}, count)

    def better(self, new, old):
        return new["loss"] < old["loss"]


class MaskedMean(nn.Module):
    """A mean over labels by a mask, with a weight of its own: 0 / 0 if none counts."""

    def __init__(self, whole, on_host):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.whole = whole
        self.on_host = on_host

    def forward(self, model, batch):
        mask = batch["y"] >= 0
        logits = self.scale * model(batch["x"])
        losses = nn.functional.cross_entropy(logits, batch["y"].clamp(min=0), reduction="none")
        count = mask.sum()
        loss = (losses * mask).sum() / (count.clamp(min=1) if self.whole else count)
        return Outcome(loss, {}, int(count) if self.on_host else count)

    better = Tokens.better


@pytest.mark.parametrize("on_host", [False, True], ids=["on the device", "on the host"])
def test_a_masked_mean_of_nothing_adds_no_gradient(on_host):
    taken = []
    for whole in (True, False):
        model, objective = fakes.make_model(), MaskedMean(whole, on_host)
        optimizer = torch.optim.SGD([*model.parameters(), objective.scale], lr=0.1)
        parts = {"model": model, "objective": objective, "optimizer": optimizer}
        trained(order={"accumulate": 4}, **parts)
        taken.append(counted.weights_of(model) + objective.scale.tolist())
    assert taken[1] == taken[0]


def test_a_count_that_comes_and_goes_is_refused():
    with pytest.raises(ConfigError, match=r"C220\]: Outcome.count: is None, unlike one pass"):
        trained(fakes.make_data(20), {"accumulate": 2}, objective=Tokens([100, None]))


def test_sparse_gradients_are_scaled_too():
    taken = []
    for accumulate in (1, 2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3, sparse=True)).double()
        data = {"x": torch.arange(10) % 5, "y": torch.tensor([-100, 0, 1, 2, 0] * 2)}
        trained(data, {"accumulate": accumulate}, model=model, momentum=0.0)
        taken.append(counted.weights_of(model))
    assert taken[1] == pytest.approx(taken[0])
