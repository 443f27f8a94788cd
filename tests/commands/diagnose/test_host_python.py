import sys
from contextlib import closing

import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.diagnose.host_python import measure_python
from framework.commands.diagnose.measure_parts import Setting
from tests.conftest import make_records, write_store

SLEEPY = """
import time

import torch
from torch import nn

from framework.contracts.training import Outcome


def rest(images, rng):
    time.sleep(0.02)
    return images


class Net(nn.Module):
    def __init__(self, seconds, width=1):
        super().__init__()
        self.layer = nn.Linear(48, 10)
        self.wide = nn.Linear(width, width)
        self.seconds = seconds
        self.width = width

    def forward(self, image):
        time.sleep(self.seconds)  # in the model
        wide = self.wide(torch.ones(self.width, self.width)).mean()
        return self.layer(image.flatten(1).float()) + wide


class Loss:
    def __init__(self, seconds, size=1):
        self.seconds = seconds
        self.size = size

    def __call__(self, model, batch):
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
        time.sleep(self.seconds)  # in the objective
        large = torch.zeros(self.size, self.size)
        large @ large  # a long operator
        return Outcome(loss, {}, len(batch["label"]))

    def better(self, new, old):
        return True


class Shade:
    num_draws = 0

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, batch, draws):
        time.sleep(self.seconds)  # in the augment
        return batch
"""


def measured(tmp_path, monkeypatch, model=0.0, objective=0.0, augment=0.0, words=(), size=1):
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sleepy", raising=False)
    path = write_store(str(tmp_path / "a.h5"), make_records(40))
    given = [
        *("data.val=null", f"data.train={path}", "batch_size=4", "allow_targets=[sleepy]"),
        *("model=null", "+model._target_=sleepy.Net", f"+model.seconds={model}"),
        *("objective=null", "+objective._target_=sleepy.Loss", f"+objective.seconds={objective}"),
        f"+objective.size={size}",
        *("augment=null", "+augment._target_=sleepy.Shade", f"+augment.seconds={augment}"),
        *words,
    ]
    setting = Setting(*composed(given, Grant(typed=True, exported="")))
    with closing(setting.probe()) as probe:
        return measure_python(probe, 2.0, lambda _: None)


@pytest.mark.parametrize("part", ["model", "objective", "augment"])
def test_python_is_attributed_to_the_part_and_the_line(tmp_path, monkeypatch, part):
    python = measured(tmp_path, monkeypatch, **{part: 0.05})
    assert max(python.step, key=python.step.get) == part
    assert python.step[part] > 0.5
    line = python.lines[0]
    assert (line.part, line.file) == (part, str(tmp_path / "sleepy.py"))
    assert f"# in the {part}" in line.text
    assert python.transform == 0.0


def test_a_long_operator_is_no_python(tmp_path, monkeypatch):
    python = measured(tmp_path, monkeypatch, size=1200)
    assert python.step["objective"] < 0.5


def test_layers_and_the_backward_pass_leave_the_share_of_python_as_it_is(tmp_path, monkeypatch):
    """They take several times as long as the sleep, and are no Python to begin with."""
    words = ["+model.width=1300"]
    python = measured(tmp_path, monkeypatch, model=0.02, words=words)
    assert (
        python.step["model"] > 0.01
    )  # beside other programs, layers take longer and sleep does not


def test_the_transform_is_sampled_while_records_are_prepared(tmp_path, monkeypatch):
    words = ["transform=function", "transform.function._target_=sleepy.rest"]
    python = measured(tmp_path, monkeypatch, words=words)
    assert python.transform > 0.5
    assert [line.function for line in python.of("transform")] == ["rest"]
