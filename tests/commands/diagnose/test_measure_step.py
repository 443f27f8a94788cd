import sys

import pytest

from framework.commands.diagnose.measure_step import measure_python, measure_syncs
from tests.commands.diagnose.setting import setting
from tests.commands.diagnose.sleepy import sleepy_probe


def measured(tmp_path, monkeypatch, words=(), **seconds):
    with sleepy_probe(tmp_path, monkeypatch, words, **seconds) as probe:
        return measure_python(probe, 2.0)


@pytest.mark.parametrize("part", ["model", "objective", "augment"])
def test_python_is_attributed_to_the_part_and_the_line(tmp_path, monkeypatch, part):
    python = measured(tmp_path, monkeypatch, **{part: 0.05})
    assert max(python.step, key=python.step.get) == part
    assert python.step[part] > 0.5
    line = python.lines[0]
    assert (line.part, line.file) == (part, str(tmp_path / "sleepy.py"))
    assert f"# in the {part}" in line.text
    assert python.transform == 0.0


def test_layers_and_the_backward_pass_leave_the_share_of_python_as_it_is(tmp_path, monkeypatch):
    """They take several times as long as the sleep, and are no Python to begin with."""
    words = ["+model.width=1300"]
    python = measured(tmp_path, monkeypatch, model=0.02, words=words)
    assert (
        python.step["model"] > 0.01
    )  # beside other programs, layers take longer and sleep does not


SLOW = """
import torch
from torch import nn
from framework.contracts.training import Outcome


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, image):
        x = self.layer(image.flatten(1))
        if x.max() > 1e9:
            x = x / 2
        return x


class Loss:
    def __call__(self, model, batch):
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
        for _ in range(3):
            self.last = loss.item()
        batch["image"][batch["label"] > 5]
        return Outcome(loss, {}, len(batch["label"]))

    def better(self, new, old):
        return True
"""
WORDS = ["data=synthetic", "batch_size=8"]


@pytest.fixture
def slow(tmp_path, monkeypatch):
    (tmp_path / "slowloss.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("slowloss", None)


def test_a_read_in_the_users_code_is_named_by_file_and_line(slow):
    probe = setting(*WORDS).probe()
    config = {
        **probe.config,
        "model": {"_target_": "slowloss.Net"},
        "objective": {"_target_": "slowloss.Loss"},
    }
    probe.close()
    probe = setting(*WORDS)._replace(config=config, allowed=("slowloss.",)).probe()
    syncs = {(sync.line, sync.call): sync for sync in measure_syncs(probe)}
    probe.close()
    lines = SLOW.splitlines()
    places = {
        call: next(n for n, text in enumerate(lines, 1) if word in text)
        for call, word in (
            ("bool()", "if x.max"),
            ("item()", ".item()"),
            ("index by a mask", '["label"] > 5'),
        )
    }
    assert {(line, call) for call, line in places.items()} == set(syncs)
    assert syncs[(places["item()"], "item()")].count == 3
    assert syncs[(places["bool()"], "bool()")].text == "if x.max() > 1e9:"
    assert all(sync.file.endswith("slowloss.py") for sync in syncs.values())
