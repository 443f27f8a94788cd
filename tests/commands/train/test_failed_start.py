"""A start that fails before the first step leaves no directory, but never removes another's."""

import os
from pathlib import Path

import pytest

from tests.cli.command import paceline, started

MISSING = ("recipes=digits", "data.train=missing.h5")


@pytest.mark.parametrize("place", ["outputs", "a/b"])
def test_a_failed_start_leaves_no_directory(place):
    words = [f"hydra.run.dir={place}"] if place != "outputs" else []
    done = paceline("train", *MISSING, *words)
    assert done.code == 3
    assert "missing.h5" in done.last_line
    assert os.listdir() == []


def test_an_error_of_the_first_step_leaves_no_directory_either():
    words = ("hydra.run.dir=run", "objective.input=nothing")
    assert paceline("train", *words).code
    assert not Path("run").exists()


@pytest.mark.parametrize("name", ["mine.txt", None], ids=["with a file", "empty"])
def test_a_directory_that_existed_before_stays(name):
    Path("run").mkdir()
    if name:
        Path("run", name).write_text("kept")
    assert paceline("train", *MISSING, "hydra.run.dir=run").code == 3
    assert paceline("train", "epochs=0", "hydra.run.dir=run").code == 2
    assert Path("run").is_dir()
    assert name is None or Path("run", name).read_text() == "kept"
    if not name:  # the same command, corrected
        assert paceline("train", "max_steps=1", "hydra.run.dir=run").code == 0


def test_failed_ranks_leave_no_directory():
    ranks = ("parallel=ddp", "parallel.num_processes=2", "hydra.run.dir=run")
    assert started("train", *MISSING, *ranks).code == 3
    assert not Path("run").exists()
