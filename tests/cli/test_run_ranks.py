"""How ranks are started and what they report; whole runs by several ranks are in ``test_train``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from framework.cli.outcome import RunOutcome
from framework.cli.run_ranks import RankedJob
from tests.cli.command import paceline


def start_rank(code: int) -> int:
    """Start a rank that has ended with ``code`` before; return its exit code now."""
    Path("run").mkdir()
    Path("shared.json").write_text(RankedJob({}, "run", ()).as_text(launcher="here"))
    outcome = RunOutcome(code, "the reason")._asdict()
    Path("run/exit.rank0.here.json").write_text(json.dumps(outcome))
    command = [sys.executable, "-m", "framework.cli.start_rank", "shared.json"]
    env = {**os.environ, "RANK": "0"}
    return subprocess.run(command, env=env, timeout=120, check=False).returncode


@pytest.mark.parametrize("code", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_a_rank_does_not_start_again_after_an_error_that_lasts(code):
    assert start_rank(code) == code
    said = json.loads(Path("run/exit.rank0.here.json").read_text())
    assert said["reason"] == "the reason"


@pytest.mark.slow
def test_the_files_of_the_ranks_are_gone_after_the_run():
    words = ["data=synthetic", "parallel=ddp", "debug=tiny", "hydra.run.dir=run"]
    done = paceline("train", *words)
    assert done.code == 0, done.err
    assert json.loads(Path("run/exit.json").read_text())["code"] == 0
    assert not list(Path("run").glob("exit.rank*"))
