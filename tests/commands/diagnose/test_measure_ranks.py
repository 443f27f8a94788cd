"""``paceline diagnose`` with real ranks, of which one is slow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from framework.commands.diagnose.diagnose import main
from framework.commands.diagnose.measure_ranks import noted_sizes, work_of
from framework.commands.diagnose.measure_step import Through
from tests.fakes import FakeLoader, make_data
from tests.parallel.launching import ROOT

NET = """
import os, time
from torch import nn

class Net(nn.Module):
    def __init__(self, in_channels: int, num_classes: int, width: int, seconds: float = 0.05):
        super().__init__()
        self.layers, self.seconds = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)), seconds

    def forward(self, image):
        if os.environ.get("RANK") == "1" and self.training:
            time.sleep(self.seconds)
        return self.layers(image)
"""
WORDS = [
    *("recipes=digits", "model._target_=own_net.Net", "allow_targets=[own_net]", "parallel=ddp"),
    *("batch_size=64", "seconds=2", "output=result.json"),
]


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own_net.py").write_text(NET)
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples"), str(tmp_path)])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    yield {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}
    left = [file.name for file in temporary.glob("paceline-*/*")]
    assert set(left) <= {"debug.log"}  # the traceback of an error
    assert len(left) == len(list(temporary.glob("paceline-*")))


def diagnosed(environment, *words, launcher=()):
    command = [sys.executable, *launcher, "-m", "framework", "diagnose", *WORDS, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_slow_rank_is_named_and_nothing_is_left(environment):
    done = diagnosed(environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(Path("result.json").read_text())
    late = result["facts"]["ranks"]["late"]
    assert (result["cause"], late["rank"], late["span"]) == ("slow_rank", 1, "forward")
    assert done.stdout.startswith("Ranks limit training. Rank 1 is late")
    assert result["facts"]["ranks"]["unsynced_s"] > 0
    assert not list(Path().glob("outputs/2*"))


@pytest.mark.slow
def test_under_torchrun_it_is_printed_once(environment):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = diagnosed(environment, launcher=launcher)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Ranks limit training. Rank 1 is late") == 1
    assert json.loads(Path("result.json").read_text())["facts"]["ranks"]["num_ranks"] == 3


@pytest.mark.slow
def test_without_a_slow_rank_one_of_them_is_diagnosed_alone(environment):
    data_waits = [
        "+model.seconds=0",
        "transform=function",
        "transform.function._target_=own_net.slow",
    ]
    with open("own_net.py", "a") as file:
        file.write("\n\ndef slow(record, rng):\n    time.sleep(0.003)\n    return record\n")
    done = diagnosed(environment, *data_waits, "workers.num=0", "loader=plain")
    assert done.returncode == 0, done.stderr
    result = json.loads(Path("result.json").read_text())
    assert "no rank holds up the others" in done.stdout
    assert result["ranks"]["cause"] == ""
    assert result["facts"]["batch_size"] == 64 // 2  # a rank's share
    assert result["cause"]


@pytest.mark.slow
def test_an_error_of_a_rank_is_one_line(environment):
    done = diagnosed(environment, "+model.seconds=-1")
    assert done.returncode != 0
    *progress, line = done.stderr.strip().splitlines()
    assert line.startswith("error[U100]: own_net.py:12: in Net.forward: ValueError"), done.stderr
    assert not any("error" in said or "Traceback" in said for said in progress), done.stderr


def test_ranks_that_would_each_be_alone_are_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["parallel=none"]) == 2
    line = capsys.readouterr().err
    assert "C190" in line
    assert "add parallel=ddp" in line


@pytest.mark.parametrize(
    ("sizes", "work"),
    [
        ([[1.0, 3.0], [3.0, 1.0]], (1.5, 1.0)),
        ([[3.0, 3.0], [1.0, 1.0]], (1.5, 1.5)),
        ([[3.0, 3.0, 9.0], [3.0, 3.0]], (1.0, 1.0)),
        ([[], [1.0]], (1.0, 1.0)),
    ],
)
def test_the_work_of_ranks_is_compared_step_by_step_and_over_all(sizes, work):
    assert work_of([torch.tensor([0.0, *own]) for own in sizes]) == work


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_size_of_a_step_is_that_of_all_its_passes(accumulate):
    """A record has four numbers and a label."""
    sizes = []
    loader = FakeLoader(make_data(8), 4, accumulate=accumulate)
    list(Through(loader, lambda batches: noted_sizes(batches, sizes)).epoch(0))
    assert sizes == [4 * 5.0] * 2
