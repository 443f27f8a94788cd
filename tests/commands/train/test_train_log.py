"""``train.log`` has what is logged in a run, in each rank and after each start."""

import re
from pathlib import Path

from tests.cli.command import is_one_error_line, paceline, started

LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:]{8},\d{3} (INFO|WARNING|ERROR)( rank \d)? [\w.]+: .*")
MODULE = """
import logging
import os
import warnings
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        logging.getLogger("mine").info("key %s\\nand more", os.environ["TOKEN"])
        logging.getLogger("mine").error("%d", "no number")
        warnings.warn("odd weights")
"""
WORDS = (
    *("model={_target_: mine.Net}", "allow_targets=[mine]", "vars={token: ${oc.env:TOKEN}}"),
    *("recipes=digits", "optim=adamw", "hydra.run.dir=run"),
)


def log():
    return Path("run/train.log").read_text()


def test_logging_warnings_notes_and_the_end_are_in_the_log_without_secrets():
    Path("mine.py").write_text(MODULE)
    done = started("train", *WORDS, "max_steps=2", TOKEN="open sesame")
    assert done.code == 0, done.err
    assert all(map(LINE.fullmatch, log().splitlines()))
    for text in (
        "INFO mine: key ${oc.env:TOKEN}\n",
        "INFO mine: and more\n",
        "UserWarning: odd weights",
        "INFO paceline: note: recipes/digits.yaml: dropped",
        "INFO paceline: finished\n",
    ):
        assert text in log()
    assert "open sesame" not in log()
    assert done.err.count("odd weights") == 2  # the message and the line of code


def test_a_resumed_run_appends_to_its_log():
    assert paceline("train", "max_steps=2", "hydra.run.dir=run").code == 0
    first = log()
    assert paceline("train", "resume=run", "max_steps=3").code == 0
    assert log().startswith(first)
    assert log().count("INFO paceline: finished\n") == 2


def test_each_rank_writes_its_lines_with_its_number():
    Path("mine.py").write_text(MODULE)
    ranks = ("parallel=ddp", "parallel.num_processes=2", "max_steps=1")
    done = started("train", *WORDS, *ranks, TOKEN="open sesame")
    assert done.code == 0, done.err
    assert all(map(LINE.fullmatch, log().splitlines()))
    assert {f"INFO rank {rank} mine: and more" for rank in (0, 1)} <= {
        line.split(" ", 2)[2] for line in log().splitlines()
    }
    assert "open sesame" not in log()


def test_a_log_that_is_a_link_is_refused(tmp_path_factory):
    place = tmp_path_factory.mktemp("elsewhere") / "file"
    place.write_text("kept")
    Path("run").mkdir()
    Path("run/train.log").symlink_to(place)
    assert is_one_error_line(paceline("train", "max_steps=1", "hydra.run.dir=run"), "K126")
    assert place.read_text() == "kept"
