from pathlib import Path

import pytest
import torch
from torch import nn

from framework.config.build import build
from framework.errors import ConfigError
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


def test_a_block_becomes_the_part_it_describes():
    schedule = build("schedule", COSINE, ())
    assert type(schedule) is Cosine
    assert (schedule.warmup_steps, schedule.final) == (3, 0.5)


def test_runtime_objects_arrive_untouched():
    parameters = [nn.Parameter(torch.ones(2))]
    optimizer = build("optim", SGD, (), params=parameters)
    assert optimizer.param_groups[0]["params"][0] is parameters[0]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_lists_and_dictionaries_are_plain():
    block = {
        "_target_": "framework.augment.normalize.Normalize",
        "field": "image",
        "mean": [0.5],
        "std": [0.25],
    }
    normalize = build("augment", block, ())
    assert (type(normalize.mean), normalize.mean, normalize.std) == (list, [0.5], [0.25])


def test_nested_blocks_are_built_first():
    layers = [
        {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3},
        {"_target_": "torch.nn.ReLU"},
    ]
    model = build("model", {"_target_": "torch.nn.Sequential", "_args_": layers}, ())
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU]


def test_a_part_may_be_built_twice_from_one_block():
    assert build("schedule", COSINE, ()) is not build("schedule", COSINE, ())


def test_an_unknown_argument_is_named():
    text = refused("schedule", {**COSINE, "warmup": 1})
    assert text.startswith("error[C106]: schedule: Cosine: ")
    assert "unexpected keyword argument 'warmup'" in text


def test_a_missing_argument_is_named():
    text = refused("schedule", {"_target_": COSINE["_target_"], "final": 0.0})
    assert text.startswith(
        "error[C106]: schedule: Cosine: missing a required argument: 'warmup_steps'"
    )


def test_a_wrong_value_is_said_with_the_part_s_own_words():
    text = refused("optim", {**SGD, "lr": -1.0}, params=[nn.Parameter(torch.ones(1))])
    assert text == (
        "error[C113]: optim = torch.optim.SGD: Invalid learning rate: -1.0; correct its arguments"
    )


def test_what_is_no_block_is_said():
    assert refused("data.val", "few.h5").startswith("error[C113]: data.val = few.h5: ")


def test_a_wrong_value_in_a_nested_block_is_one_line():
    inner = {"_target_": "torch.nn.Linear", "in_features": "two", "out_features": 3}
    text = refused("model", {"_target_": "torch.nn.Sequential", "_args_": [inner]})
    assert text.startswith("error[C113]: model = torch.nn.Sequential: ")
    assert "\n" not in text


def test_a_part_s_own_error_comes_out_as_it_is():
    assert refused("precision", {**AMP, "dtype": "fp8"}, device=CPU).startswith(
        "error[C110]: precision.dtype = fp8"
    )


def test_a_runtime_object_may_not_be_configured_too():
    text = refused("precision", {**AMP, "device": "cuda:7"}, device=CPU)
    assert text.startswith("error[C106]: precision")
    assert "device" in text


FORBIDDEN = (
    "os.system",
    "builtins.eval",
    "subprocess.run",
    "sklearn.svm.SVC",
    "frameworks.Evil",
    "torch.hub.load",
    "",
)


@pytest.mark.parametrize("target", FORBIDDEN)
def test_what_is_not_on_the_list_is_refused(target):
    assert refused("model", {"_target_": target}).startswith(
        f"error[C105]: model._target_ = {target}"
    )


ALIASES = (
    "paceline_examples.digits_net.Tensor",
    "framework.store.folder_store.Path",
    "torch.nn.modules.module.functools.partial",
)


@pytest.mark.parametrize("alias", ALIASES)
def test_a_foreign_function_under_a_name_of_ours_is_refused_and_not_called(alias):
    text = refused("model", {"_target_": alias, "_args_": ["touch canary"]})
    assert text.startswith(f"error[C105]: model._target_ = {alias}: is really ")
    assert not Path("canary").exists()


def test_a_forbidden_target_inside_a_block_is_refused_before_anything_is_made():
    block = {
        "_target_": "torch.nn.Sequential",
        "_args_": [{"_target_": "os.mkdir", "path": "canary"}],
    }
    assert refused("model", block).startswith("error[C105]: model._args_.0._target_ = os.mkdir")
    assert not Path("canary").exists()


@pytest.mark.parametrize(
    "name",
    ["paceline_examples.digits_net.NoSuch", "framework.model.nowhere.Net", "torch.nn.Linaer"],
)
def test_a_name_that_is_not_there_is_said(name):
    assert refused("model", {"_target_": name}).startswith(
        f"error[C105]: model._target_ = {name}: cannot be found"
    )


def test_what_cannot_be_called_is_refused():
    assert refused("model", {"_target_": "framework.parallel.ddp.COMPRESS"}).startswith(
        "error[C105]"
    )


def test_a_package_the_user_allows_is_built(monkeypatch, tmp_path):
    (tmp_path / "mynets.py").write_text(
        "class Net:\n    def __init__(self, width):\n        self.width = width\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    block = {"_target_": "mynets.Net", "width": 5}
    assert refused("model", block).startswith("error[C105]")
    assert build("model", block, ("mynets.",)).width == 5
