"""The files of a replay."""

import json
import math

import cv2
import torch

from framework.commands.replay.step_again import ReplayedStep
from framework.commands.replay.watched_steps import WatchedPass
from framework.commands.replay.write_replay import as_pixels, write_replay
from framework.contracts.records import Manifest
from framework.objective.classify import Classify

FACTS = {
    "run": "run",
    "search": None,
    "step": 7,
    "epoch": 1,
    "learning_rate": 0.1,
    "means": {"loss": 2.0},
    "gradients": {"head": 1.0},
    "updated": True,
    "neighbors": [],
    "ended": "",
    "from_state": None,
    "repeated_reports": [],
    "differing_reports": [],
    "differences": [],
    "wall_s": 1.0,
}


class Records:
    """A source that names no keys."""

    manifest = Manifest(9, {}, ["cat", "dog"])


def passed(losses, first=0):
    count = len(losses)
    images = torch.arange(count * 12.0).reshape(count, 3, 2, 2) + first
    batch = {"index": torch.arange(count) + first, "image": images}
    batch["label"] = torch.arange(count) % 2
    return WatchedPass(batch, [], torch.tensor(losses, dtype=torch.float64))


def test_records_stand_with_the_highest_loss_first(tmp_path):
    passes = [passed([0.5, math.nan]), passed([3.0, 1.0], first=5)]
    objective = Classify("image", "label", 0.0)
    folder = write_replay(ReplayedStep(dict(FACTS), passes, Records(), objective), tmp_path)
    assert folder == tmp_path / "replay" / "step_7"
    written = json.loads((folder / "replay.json").read_text())
    assert [record["index"] for record in written["records"]] == [1, 5, 6, 0]
    assert [record["class"] for record in written["records"]] == ["dog", "cat", "dog", "cat"]
    assert cv2.imread(str(folder / "batch.png")).shape == (4, 4, 3)
    assert "dog" in (folder / "replay.html").read_text()


def test_floats_are_stretched_by_channel_and_what_is_not_finite_is_black():
    images = torch.zeros(2, 1, 2, 2)
    images[0, 0] = torch.tensor([[-1.0, 0.0], [1.0, math.nan]])
    assert as_pixels(images)[0, 0].tolist() == [[0, 128], [255, 0]]
    assert not as_pixels(torch.full((1, 3, 2, 2), math.nan)).any()
