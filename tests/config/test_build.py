"""Parts are built from their blocks: what may be called, and with which arguments."""

from pathlib import Path

import pytest
import torch
from torch import nn

from framework.config.build import build, build_schedule, takes_optimizer
from framework.errors import ConfigError, ResourceError
from framework.schedule.cosine import Cosine

COSINE = {"_target_": "framework.schedule.cosine.Cosine", "warmup_steps": 3, "final": 0.5}
AMP = {"_target_": "framework.precision.amp.AMP", "dtype": "bf16"}
SGD = {"_target_": "torch.optim.SGD", "lr": 0.5}
CPU = torch.device("cpu")


def refused(where, block, allowed=(), **runtime):
    """Return the line of the ConfigError that ``build`` raises."""
    with pytest.raises(ConfigError) as caught:
        build(where, block, allowed, **runtime)
    return str(caught.value)


# --------------------------------------------------------------------------------- what is built


def test_a_block_becomes_the_part_that_it_describes():
    schedule = build("schedule", COSINE, ())
    assert type(schedule) is Cosine
    assert (schedule.warmup_steps, schedule.final) == (3, 0.5)
    assert build("schedule", COSINE, ()) is not schedule


def test_nested_blocks_are_built_first():
    layers = [
        {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3},
        {"_target_": "torch.nn.ReLU"},
    ]
    model = build("model", {"_target_": "torch.nn.Sequential", "_args_": layers}, ())
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU]


def test_a_package_the_user_allows_is_built(monkeypatch, tmp_path):
    text = "class Net:\n    def __init__(self, width):\n        self.width = width\n"
    (tmp_path / "mynets.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    block = {"_target_": "mynets.Net", "width": 5}
    assert refused("model", block).startswith("error[C105]")
    assert build("model", block, ("mynets.",)).width == 5


# ---------------------------------------------------------------------------- arguments and values


@pytest.mark.parametrize(
    ("where", "block", "runtime", "line"),
    [
        (
            "schedule",
            {**COSINE, "warmup": 1},
            {},
            "C106]: schedule: Cosine: got an unexpected keyword argument 'warmup'",
        ),
        (
            "schedule",
            {"_target_": COSINE["_target_"], "final": 0.0},
            {},
            "C106]: schedule: Cosine: missing a required argument: 'warmup_steps'",
        ),
        ("precision", {**AMP, "device": "cuda:7"}, {"device": CPU}, "C106]: precision.device"),
        ("precision", {**AMP, "dtype": "fp8"}, {"device": CPU}, "C110]: precision.dtype = fp8"),
        ("schedule", {**COSINE, "final": "low"}, {}, "C101]: schedule.final = low"),
        (
            "optim",
            {**SGD, "lr": -1.0},
            {"params": [nn.Parameter(torch.ones(1))]},
            "C113]: optim = torch.optim.SGD: Invalid learning rate: -1.0; correct its arguments",
        ),
        ("data.val", "few.h5", {}, "C113]: data.val = few.h5: "),
    ],
    ids=["unknown", "missing", "of the run", "own error", "kind", "value", "no block"],
)
def test_arguments_that_do_not_fit_are_refused_in_one_line(where, block, runtime, line):
    assert refused(where, block, **runtime).startswith(f"error[{line}")


def test_a_part_for_which_there_is_no_memory_is_not_blamed_on_its_arguments():
    block = {"_target_": "torch.nn.Linear", "in_features": 10**7, "out_features": 10**8}
    with pytest.raises(ResourceError, match="R104"):
        build("model", block, ())


def test_a_wrong_value_in_a_nested_block_is_one_line():
    inner = {"_target_": "torch.nn.Linear", "in_features": "two", "out_features": 3}
    line = refused("model", {"_target_": "torch.nn.Sequential", "_args_": [inner]})
    assert line.startswith("error[C113]: model = torch.nn.Sequential: ")
    assert "\n" not in line


# --------------------------------------------------------------------------------- what is called


@pytest.mark.parametrize(
    "alias",
    [
        "framework.store.folder_store.Path",
        "framework.train.checkpoint.torch.load",
        "framework.model.digits_net.Tensor",
        "torch.nn.modules.module.functools.partial",
    ],
)
def test_a_foreign_function_under_a_name_of_ours_is_refused_and_not_called(alias):
    line = refused("model", {"_target_": alias, "_args_": ["touch canary"]})
    assert line.startswith(f"error[C105]: model._target_ = {alias}: ")
    assert not Path("canary").exists()


def test_a_forbidden_target_inside_a_block_is_refused_before_anything_is_made():
    inner = {"_target_": "os.mkdir", "path": "canary"}
    line = refused("model", {"_target_": "torch.nn.Sequential", "_args_": [inner]})
    assert line.startswith("error[C105]: model._args_.0._target_ = os.mkdir")
    assert not Path("canary").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lent.NoSuch", "cannot be found"),
        ("lent.WIDTH", "is really"),  # cannot be called
        ("lent.os.mkdir", "is really posix.mkdir"),
    ],
)
def test_a_name_in_a_package_of_the_user_that_is_not_its_own_is_refused(
    name, text, monkeypatch, tmp_path
):
    (tmp_path / "lent.py").write_text("import os\nWIDTH = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    line = refused("model", {"_target_": name, "_args_": ["canary"]}, ("lent.",))
    assert line.startswith(f"error[C105]: model._target_ = {name}: {text}")
    assert not Path("canary").exists()


def test_what_is_left_of_a_reference_stays_text():
    text = "${oc.create:{_target_: os.mkdir, path: canary}}"
    block = {"_target_": "torch.nn.Sequential", "_args_": [text]}
    assert "str is not a Module" in refused("model", block)
    assert not Path("canary").exists()


# ---------------------------------------------------------------------------------------- schedules

TORCH = "torch.optim.lr_scheduler"
STEP = {"_target_": f"{TORCH}.StepLR", "step_size": 2, "gamma": 0.5}
WARM = {"warmup_steps": 0, "warmup_epochs": 2, "final": 0.0}


def schedule_of(block, warmup_steps=None):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    return build_schedule(block, (), optimizer, warmup_steps)


def rates(block, count=5):
    setter = schedule_of(block)[1]
    result = []
    for step in range(count):
        setter.move_to(step)
        result.append(setter.rates[0])
    return result


def test_a_schedule_of_ours_gets_its_warm_up_in_steps():
    schedule, setter = schedule_of({**COSINE, **WARM}, 24.0)
    assert schedule == Cosine(24, 0.0)
    assert setter is None


def test_a_scheduler_of_torch_sets_the_rates():
    assert rates(STEP) == [0.5, 0.5, 0.25, 0.25, 0.125]
    assert schedule_of({**STEP, "per": "epoch"})[1].per == "epoch"
    assert schedule_of(STEP)[1].per == "step"


def test_a_scheduler_of_torch_may_hold_others():
    parts = [
        {"_target_": f"{TORCH}.ConstantLR", "factor": 0.5, "total_iters": 9},
        {"_target_": f"{TORCH}.ExponentialLR", "gamma": 0.5},
    ]
    block = {"_target_": f"{TORCH}.SequentialLR", "schedulers": parts, "milestones": [2]}
    assert rates(block) == [0.25, 0.25, 0.5, 0.25, 0.125]


def test_a_scheduler_of_torch_is_known_by_its_optimizer():
    assert takes_optimizer(STEP)
    assert not takes_optimizer(COSINE)
    assert not takes_optimizer({"_target_": "unknown.Thing"})


@pytest.mark.parametrize(
    ("changes", "words"), [({"gama": 2}, "C106.*gama"), ({"per": "batch"}, "C315")]
)
def test_a_scheduler_that_does_not_fit_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        schedule_of({**STEP, **changes})
