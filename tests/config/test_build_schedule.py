import pytest
import torch

from framework.config.build_schedule import build_schedule, is_foreign
from framework.errors import ConfigError
from framework.schedule.cosine import Cosine

TORCH = "torch.optim.lr_scheduler"
COSINE = {
    "_target_": "framework.schedule.cosine.Cosine",
    "warmup_steps": 0,
    "warmup_epochs": 2,
    "final": 0.0,
}


def built(block, warmup_steps=None):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    return build_schedule(block, (), optimizer, warmup_steps)


def rates(block, count=5):
    setter = built(block)[1]
    result = []
    for step in range(count):
        setter.move_to(step)
        result.append(setter.rates[0])
    return result


def test_a_schedule_of_ours_gets_its_warm_up_in_steps():
    schedule, setter = built(COSINE, 24.0)
    assert schedule == Cosine(24, 0.0)
    assert setter is None


def test_a_scheduler_of_torch_sets_the_rates():
    block = {"_target_": f"{TORCH}.StepLR", "step_size": 2, "gamma": 0.5}
    assert rates(block) == [0.5, 0.5, 0.25, 0.25, 0.125]
    assert built({**block, "per": "epoch"})[1].per == "epoch"
    assert built(block)[1].per == "step"


def test_a_scheduler_may_hold_others():
    parts = [
        {"_target_": f"{TORCH}.ConstantLR", "factor": 0.5, "total_iters": 9},
        {"_target_": f"{TORCH}.ExponentialLR", "gamma": 0.5},
    ]
    block = {"_target_": f"{TORCH}.SequentialLR", "schedulers": parts, "milestones": [2]}
    assert rates(block) == [0.25, 0.25, 0.5, 0.25, 0.125]


def test_a_scheduler_is_known_by_its_optimizer():
    assert is_foreign({"_target_": f"{TORCH}.StepLR"})
    assert not is_foreign(COSINE)
    assert not is_foreign({"_target_": "unknown.Thing"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"gama": 2}, "C106.*gama"), ({"per": "batch"}, "C315")],
)
def test_what_does_not_fit_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        built({"_target_": f"{TORCH}.StepLR", "step_size": 2, **changes})
