"""What a replay shows: its files, the page, and the terminal's words."""

import json
import math

import cv2
import pytest
import torch

from framework.commands.replay.show_replay import (
    as_pixels,
    gradient_rows,
    print_replay,
    show_replay,
)
from framework.commands.replay.watched_steps import WatchedPass

NEIGHBOR = {"step": 6, "means": {"loss": 1.0}, "gradients": {"stem": 1.0, "<b>": 1.0}}
RECORDS = [
    {"index": 3, "key": "a\x1b[2J", "class": "cat", "loss": math.nan, "place": 1},
    *({"index": n, "key": "", "class": None, "loss": 1.0, "place": n} for n in range(2, 30)),
]


@pytest.fixture
def summary():
    return {
        "run": "<script>",
        "step": 7,
        "epoch": 2,
        "learning_rate": 0.1,
        "means": {"loss": math.nan},
        "gradients": {"stem": 2.0, "<b>": math.nan},
        "neighbors": [NEIGHBOR],
        "updated": False,
        "search": {"first": 1, "last": 10},
        "ended": "error[N101]: step 10",
        "from_state": None,
        "repeated_reports": [],
        "differing_reports": [5],
        "wall_s": 2.0,
        "records": [dict(record) for record in RECORDS],
    }


def test_the_files_show_records_in_their_order(tmp_path, summary):
    images = torch.arange(30 * 12.0).reshape(30, 3, 2, 2)
    show_replay(summary, [WatchedPass({"index": torch.arange(30), "image": images})], tmp_path)
    folder = tmp_path / "replay" / "step_7"
    assert json.loads((folder / "replay.json").read_text())["records"][0]["index"] == 3
    assert cv2.imread(str(folder / "batch.png")).shape[2] == 3


def test_what_counts_is_said(summary, capsys):
    print_replay(summary)
    text = capsys.readouterr().out
    assert "step 7 of epoch 2: loss nan, learning rate 0.1, and the step was skipped" in text
    assert "found among steps 1 to 10" in text
    assert "NOT as the run took it: the report of step 5 differs" in text
    assert "then the run ended: error[N101]" in text
    assert "the 20 of 29 records with the highest loss" in text
    assert "\x1b[2J" not in text


def test_the_layers_that_grew_most_stay(summary):
    rows = gradient_rows(summary, most=1)
    assert [row[0] for row in rows] == ["loss", "all layers", "<b>"]
    assert rows[2] == ["<b>", "1", "nan"]
    assert len(gradient_rows(summary)) == 4


def test_floats_are_stretched_by_channel_and_what_is_not_finite_is_black():
    images = torch.zeros(2, 1, 2, 2)
    images[0, 0] = torch.tensor([[-1.0, 0.0], [1.0, math.nan]])
    assert as_pixels(images)[0, 0].tolist() == [[0, 128], [255, 0]]
    assert not as_pixels(torch.full((1, 3, 2, 2), math.nan)).any()
