"""What the user's code and the ranks of a run cost, with real ranks of which one is slow."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from framework.cli.arguments import Grant
from framework.cli.hydra_app import composed
from framework.commands.diagnose import measure_run
from framework.commands.diagnose import measure_run as module
from framework.commands.diagnose.diagnose import main
from framework.commands.diagnose.measure_parts import Setting
from framework.commands.diagnose.measure_run import StepTimer, measure_code, noted_sizes, work_of
from tests import conftest, fakes
from tests.commands.diagnose.setting import setting, sleepy_probe
from tests.parallel.launching import ROOT


def measured(tmp_path, monkeypatch, words=(), **seconds):
    with sleepy_probe(tmp_path, monkeypatch, words, **seconds) as probe:
        known = measure_code(probe, 2.0)
    return known["python"], known["lines"]


@pytest.mark.parametrize("part", ["model", "objective", "augment"])
def test_python_is_attributed_to_the_part_and_the_line(tmp_path, monkeypatch, part):
    shares, lines = measured(tmp_path, monkeypatch, **{part: 0.05})
    assert max(shares, key=shares.get) == part
    assert shares[part] > 0.5
    line = lines[0]
    assert (line.part, line.file) == (part, str(tmp_path / "sleepy.py"))
    assert f"# in the {part}" in line.text
    assert shares["transform"] == 0.0


def test_layers_and_the_backward_pass_leave_the_share_of_python_as_it_is(tmp_path, monkeypatch):
    """They take several times as long as the sleep, and are no Python to begin with."""
    words = ["+model.width=1300"]
    shares, _ = measured(tmp_path, monkeypatch, model=0.02, words=words)
    # Beside other programs, layers take longer and sleep does not.
    assert shares["model"] > 0.01


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
    syncs = {(sync.line, sync.call): sync for sync in measure_code(probe, 0.1)["syncs"]}
    probe.close()
    words = {"bool()": "if x.max", "item()": ".item()", "index by a mask": '["label"] > 5'}
    lines = SLOW.splitlines()
    places = {call: [word in row for row in lines].index(True) + 1 for call, word in words.items()}
    assert {(line, call) for call, line in places.items()} == set(syncs)
    assert syncs[(places["item()"], "item()")].count == 3
    assert syncs[(places["bool()"], "bool()")].text == "if x.max() > 1e9:"
    assert all(sync.file.endswith("slowloss.py") for sync in syncs.values())


SLOW_SINK = """
import time


class Sink:
    def __init__(self, *, run):
        pass
    def write(self, report):
        time.sleep(0.02)
    def flush(self):
        pass
    def close(self):
        pass
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function of words that makes a run's setting, with a slow sink and validation."""
    (tmp_path / "slowsink.py").write_text(SLOW_SINK)
    monkeypatch.syspath_prepend(tmp_path)
    train = conftest.write_store(str(tmp_path / "a.h5"), conftest.make_records(64))
    val = conftest.write_store(str(tmp_path / "b.h5"), conftest.make_records(24))

    def made(*words):
        known = [
            *("model.width=4", "batch_size=8", f"data.train={train}"),
            *(f"data.val={val}", "+sink.slow._target_=slowsink.Sink", "allow_targets=[slowsink]"),
        ]
        return Setting(*composed([*known, *words], Grant(frozenset({"allow_targets"}), "")))

    return made


def costs(setting):
    with closing(setting.probe()) as probe:
        return measure_run.measure_run(probe, 0.5)


def test_each_habit_of_a_run_has_a_cost_and_an_interval(run, capsys):
    known = costs(run("report_every=3", "checkpoint.every_steps=5"))
    assert known.report_every == 3
    assert known.report_s["slow"] >= 0.02 > known.report_s["jsonl"] > 0
    assert known.validate_s >= 0.02  # its report is written, too
    assert known.save_s > 0
    assert known.epoch_steps == known.validate_every == 8
    assert known.save_every["checkpoint.every_steps"] == 5
    assert "".join(capsys.readouterr()).count("step") == 0


def test_the_sinks_of_services_are_left_out(run):
    known = costs(run("sink=[jsonl,mlflow]"))
    assert known.report_s.keys() == {"jsonl", "slow"}


def test_the_first_steps_do_not_count(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    timer, started = StepTimer(1.0, 10, 20), []
    timer.at_start.append(lambda: started.append(now[0]))
    num_steps = 0
    ends = False
    while not ends:
        now[0] += 10.0 if num_steps < 10 else 0.01
        num_steps += 1
        ends = timer()
    assert started == [100.0 + 10.0 * 10]
    assert num_steps == 10 + 101
    assert timer.step_s == pytest.approx(0.01)


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
RANK_WORDS = [
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
    command = [sys.executable, *launcher, "-m", "framework", "diagnose", *RANK_WORDS, *words]
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
    slow = "transform.function._target_=own_net.slow"
    data_waits = ["+model.seconds=0", "transform=function", slow]
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
    loader = fakes.FakeLoader(fakes.make_data(8), 4, accumulate=accumulate)
    measure_run.pass_through(loader, lambda batches: noted_sizes(batches, sizes))
    list(loader.epoch(0))
    assert sizes == [4 * 5.0] * 2
