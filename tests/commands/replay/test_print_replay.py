"""The terminal's words about a replay."""

import json
import math

from framework.commands.replay.print_replay import gradient_rows, print_replay

NEIGHBOR = {"step": 6, "means": {"loss": 1.0}, "gradients": {"stem": 1.0, "head": 1.0}}
SUMMARY = {
    "step": 7,
    "epoch": 2,
    "learning_rate": 0.1,
    "means": {"loss": math.nan},
    "gradients": {"stem": 2.0, "head": math.nan},
    "neighbors": [NEIGHBOR],
    "updated": False,
    "search": {"first": 1, "last": 10},
    "ended": "error[N101]: step 10",
    "from_state": None,
    "repeated_reports": [],
    "differing_reports": [5],
    "differences": ["torch was 1, is 2"],
    "wall_s": 2.0,
    "records": [
        {"index": 3, "key": "a\x1b[2J", "class": "cat", "loss": math.nan},
        *({"index": number, "key": "", "class": None, "loss": 1.0} for number in range(30)),
    ],
    "files": ["replay.json"],
}


def test_what_counts_is_said(tmp_path, capsys):
    (tmp_path / "replay.json").write_text(json.dumps(SUMMARY))
    print_replay(tmp_path, "replay.json")
    text = capsys.readouterr().out
    assert "step 7 of epoch 2: loss nan, learning rate 0.1, and the step was skipped" in text
    assert "found among steps 1 to 10" in text
    assert "NOT as the run took it: the report of step 5 differs (torch was 1, is 2)" in text
    assert "then the run ended: error[N101]" in text
    assert "the 20 of 31 records with the highest loss" in text
    assert "\x1b[2J" not in text


def test_the_layers_that_grew_most_stay():
    rows = gradient_rows(SUMMARY, most=1)
    assert [row[0] for row in rows] == ["loss", "all layers", "head"]
    assert rows[2] == ["head", "1", "nan"]
    assert len(gradient_rows(SUMMARY, most=None)) == 4
