import io

import pytest
import torch
from torch.optim import lr_scheduler

from framework.errors import ConfigError
from framework.schedule.torch_schedule import TorchSchedule

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
