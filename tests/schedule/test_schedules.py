"""Learning rates over the steps, also by a metric and by a scheduler of torch."""

import io
import math
import pickle
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from framework.errors import ConfigError
from framework.schedule.constant import Constant
from framework.schedule.cosine import Cosine
from framework.schedule.one_cycle import OneCycle
from framework.schedule.plateau import Plateau
from framework.schedule.torch_schedule import TorchSchedule

HALF_COSINE = [(1 + math.cos(math.pi * step / 4)) / 2 for step in range(5)]
UP_AND_DOWN = [0.2, 0.4, 0.6, 0.8, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0]


@pytest.mark.parametrize(
    ("schedule", "total_steps", "factors"),
    [
        pytest.param(Constant(), 10, [1.0] * 10, id="constant"),
        pytest.param(Constant(4), 10, [0.25, 0.5, 0.75, 1.0, 1.0], id="constant after a warm-up"),
        pytest.param(Cosine(0, 0.0), 4, HALF_COSINE, id="half a cosine"),
        pytest.param(Cosine(4, 0.0), 100, [0.25, 0.5, 0.75, 1.0, 1.0], id="cosine after a warm-up"),
        pytest.param(Cosine(10, 0.0), 3, [0.1, 0.2, 0.3], id="shorter than its warm-up"),
        pytest.param(OneCycle(0.4, 0.2), 10, UP_AND_DOWN, id="straight up and down"),
        pytest.param(OneCycle(1.0, 0.0), 4, [0.0, 0.25, 0.5, 0.75, 0.0], id="a peak at the end"),
    ],
)
def test_factors_of_the_first_steps(schedule, total_steps, factors):
    given_factors = [schedule(step, total_steps) for step in range(len(factors))]
    assert given_factors == pytest.approx(factors)


def test_a_curve_ends_at_its_final_factor():
    assert Cosine(warmup_steps=3, final=0.1)(100, 100) == pytest.approx(0.1)
    # the published triangle: 0.2 at the start, 1 after 23 %, 0.07 at the end
    schedule = OneCycle(peak=0.23, start=0.2, final=0.07)
    factors = [schedule(step, 100) for step in (0, 23, 50, 100)]
    assert factors == pytest.approx([0.2, 1.0, 0.07 + 0.93 * 50 / 77, 0.07])


@pytest.mark.parametrize("total_steps", [1, 2, 3])
def test_a_run_of_few_steps_has_a_rate(total_steps):
    factors = [OneCycle(peak=0.3, start=0.1)(step, total_steps) for step in range(total_steps)]
    assert all(0.0 < factor <= 1.0 for factor in factors)


@given(st.integers(0, 20), st.floats(0, 1), st.integers(1, 60))
def test_after_the_warm_up_a_cosine_never_rises(warmup_steps, final, total_steps):
    schedule = Cosine(warmup_steps, final)
    factors = [schedule(step, total_steps) for step in range(warmup_steps, total_steps + 2)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(factors))


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 100))
def test_one_cycle_has_one_summit(peak, start, total_steps):
    schedule = OneCycle(peak, start)
    factors = [schedule(step, total_steps) for step in range(total_steps)]
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


def plateau(**changes):
    words = {"metric": "loss", "mode": "min", "factor": 0.5, "patience": 1, "threshold": 0.0}
    return Plateau(**{**words, **changes})


def factors(schedule, *values):
    """Return the factor after each validation."""
    result = []
    for value in values:
        schedule.follow(value)
        result.append(schedule(10, 100))
    return result


@pytest.mark.parametrize(
    ("changes", "values", "expected"),
    [
        pytest.param(
            {"patience": 1},
            [1.0, 2.0, 2.0, 2.0, 2.0, 0.5],
            [1, 1, 0.5, 0.5, 0.25, 0.25],
            id="patience",
        ),
        pytest.param({"mode": "max"}, [1.0, 2.0, 1.5], [1, 1, 0.5], id="greater is better"),
        pytest.param(
            {"threshold": 0.1}, [1.0, 0.95, 0.8], [1, 0.5, 0.5], id="a small improvement is none"
        ),
        pytest.param(
            {"threshold": 0.1}, [-10.0, -10.5, -11.5], [1, 0.5, 0.5], id="share of a negative value"
        ),
        pytest.param(
            {"threshold": 0.1, "mode": "max"},
            [-10.0, -9.5, -8.5],
            [1, 0.5, 0.5],
            id="negative, max",
        ),
        pytest.param(
            {"threshold": 1e-4},
            [-10.0, -9.9995, -9.999, -9.9985],
            [1, 0.5, 0.25, 0.125],
            id="a negative value that becomes worse",
        ),
        pytest.param({"threshold": 1.0}, [5.0, -0.5], [1, 1], id="the first value is the best"),
        pytest.param({"final": 0.4}, [1.0, 1.0, 1.0], [1, 0.5, 0.4], id="a least factor"),
        pytest.param({"cooldown": 1}, [1.0] * 4, [1, 0.5, 0.5, 0.25], id="a pause after a fall"),
    ],
)
def test_the_rate_falls_when_the_metric_stops_improving(changes, values, expected):
    assert factors(plateau(**{"patience": 0, **changes}), *values) == expected


def test_it_says_whether_the_rate_has_changed():
    schedule = plateau(patience=0)
    assert [schedule.follow(1.0), schedule.follow(1.0)] == [False, True]


def test_it_warms_up_to_the_present_rate():
    schedule = plateau(warmup_steps=4)
    assert [schedule(step, 100) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_state_continues_at_any_validation(count):
    values = [1.0, 2.0, 2.0, -0.9, 2.0, -0.91, 2.0]
    whole, half, again = (plateau(cooldown=1, threshold=0.1) for _ in range(3))
    factors(half, *values[:count])
    again.load_state_dict(pickle.loads(pickle.dumps(half.state_dict())))
    assert factors(again, *values[count:]) == factors(whole, *values)[count:]
    assert again.state_dict() == whole.state_dict()


def test_with_other_data_the_best_is_forgotten_and_the_rate_stays():
    schedule = plateau(patience=0)
    factors(schedule, 1.0, 1.0)
    schedule.forget_best()
    assert factors(schedule, 7.0, 8.0) == [0.5, 0.25]


def test_of_several_sets_the_first_has_the_metric():
    assert plateau().value_of({"accuracy": 1.0, "loss": 2.0}) == 2.0
    assert plateau().value_of({"a.loss": 3.0, "b.loss": 4.0}) == 3.0
    assert plateau(metric="b.loss").value_of({"a.loss": 3.0, "b.loss": 4.0}) == 4.0


def test_a_metric_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"C314.*metric = f1: validation has loss, accuracy"):
        plateau(metric="f1").value_of({"loss": 1.0, "accuracy": 1.0})


NUM_STEPS = 12


def adam():
    groups = [{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)], "lr": 0.5}]
    return torch.optim.AdamW(groups, lr=0.1)


def sequential(optimizer):
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
        lr_scheduler.StepLR(optimizer, 2),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [3])


KINDS = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.5),
    "several": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 5], 0.1),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, NUM_STEPS + 2),
    "function": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "chain": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(optimizer, 0.9), lr_scheduler.ConstantLR(optimizer, 0.5)]
    ),
    "sequence": sequential,
}
every = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def schedule(make, optimizer=None, per="step"):
    return TorchSchedule(make, optimizer or adam(), per, "torch.optim.lr_scheduler.StepLR")


def rates(own, first=0):
    result = []
    for step in range(first, NUM_STEPS):
        own.move_to(step)
        result.append(own.rates)
    return result


@every
def test_the_rates_are_those_of_torch(make):
    optimizer = adam()
    theirs = make(optimizer)
    expected = []
    for _ in range(NUM_STEPS):
        expected.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        theirs.step()
    assert rates(schedule(make)) == expected


@every
def test_a_state_continues_with_the_same_bits(make):
    step = 3
    half, again = schedule(make), schedule(make)
    half.move_to(step)
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert rates(again, step) == rates(schedule(make))[step:]


def test_the_optimizer_keeps_its_rates_and_gets_what_else_has_changed():
    optimizer = adam()
    own = schedule(KINDS["one cycle"], optimizer)
    own.move_to(3)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]
    assert "initial_lr" not in optimizer.param_groups[0]
    own.set_options(optimizer.param_groups)
    assert optimizer.param_groups[0]["betas"] != (0.9, 0.999)


def test_a_state_with_other_rates_is_refused():
    other = torch.optim.AdamW([{"params": [torch.zeros(1)]}], lr=0.1)
    with pytest.raises(ValueError, match="other learning rates"):
        schedule(KINDS["step"]).load_state_dict(schedule(KINDS["step"], other).state_dict())


class Holding(lr_scheduler.StepLR):
    """Holds what no checkpoint can."""

    def __init__(self, optimizer):
        self.thing = {"a": [object()]}
        super().__init__(optimizer, 3)


@pytest.mark.parametrize(
    ("make", "per", "words"),
    [
        (KINDS["step"], "batch", "schedule.per = batch: is not a time to step; choose step or ep"),
        (lr_scheduler.ReduceLROnPlateau, "step", "choose schedule=plateau"),
        (lambda _: 3, "step", "makes a int, which is no scheduler"),
        (Holding, "step", "has a state with a object, which cannot be saved"),
    ],
    ids=["per batch", "plateau", "no scheduler", "a foreign state"],
)
def test_what_cannot_be_used_is_refused(make, per, words):
    with pytest.raises(ConfigError, match=f"C315.*{words}"):
        schedule(make, per=per)
