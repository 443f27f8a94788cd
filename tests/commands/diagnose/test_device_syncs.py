import sys

import pytest
import torch
from torch import nn

from framework.commands.diagnose.device_syncs import culprit, find_syncs
from tests.commands.diagnose.setting import setting

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
    syncs = {(sync.line, sync.call): sync for sync in find_syncs(probe)}
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


def test_the_place_is_the_nearest_code_that_is_not_torchs():
    places = []

    class Watch(nn.Module):
        def forward(self, x):
            places.append(culprit(sys._getframe(0)))
            return x

    nn.Sequential(Watch())(torch.zeros(1))
    assert places[0][0] == __file__
