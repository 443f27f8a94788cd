"""A file cannot allow itself anything, and a signal leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import is_one_error_line, paceline
from tests.commands.train.test_train import LIMIT_S
from tests.faults.forked import wait_for

EVIL = (
    "open('ran', 'w').close()\n"
    "from paceline_examples.digits_net import DigitsCNN\nclass Net(DigitsCNN): pass\n"
)
WAYS = {
    "value": "allow_targets: [evil]",
    "environment": "hydra: {job: {env_set: {PACELINE_ALLOW_TARGETS: evil}}}",
    "sweep": 'hydra: {mode: MULTIRUN, sweeper: {params: {allow_targets: "[evil]"}}}',
    "callback": "hydra: {callbacks: {x: {_target_: builtins.open, file: ran, mode: w}}}",
}


def write_recipe(text: str) -> None:
    """Write a recipe that somebody sent, and the package that it wants to run."""
    Path("evil.py").write_text(EVIL)
    Path("recipes").mkdir(exist_ok=True)
    body = "defaults:\n  - digits\nmodel: {_target_: evil.Net}\n"
    Path("recipes/sent.yaml").write_text(f"# @package _global_\n{body}{text}\n")


@pytest.mark.parametrize("way", WAYS)
def test_an_input_that_somebody_sent_cannot_allow_itself_anything(way):
    Path("evil.py").write_text(
        "open('ran', 'w').close()\ndef records(item):\n    yield {'x': 1.0}\n"
    )
    Path("sent/input").mkdir(parents=True)
    body = (
        "_target_: framework.input.function.FunctionInput\nfunction: evil.records\n"
        "call: {_target_: evil.records, _partial_: true}"
    )
    block = "".join(
        f"  {line}\n" for line in [*body.splitlines(), "path: null", "items: 2", "classes: null"]
    )
    Path("sent/input/sent.yaml").write_text(f"# @package _global_\ninput:\n{block}{WAYS[way]}\n")
    done = paceline("pack", "--config-dir", "sent", "input=sent", "output.path=x.h5")
    assert done.code == 2, done
    assert not Path("ran").exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_recipe_cannot_allow_itself_anything(way):
    write_recipe(WAYS[way])
    done = paceline("train", "--config-dir", ".", "recipes=sent")
    assert done.code == 2
    assert is_one_error_line(done, "C125" if way in ("callback", "environment") else "C105")
    assert not Path("ran").exists()


def test_a_run_directory_cannot_allow_itself_anything():
    write_recipe("")
    words = [
        "--config-dir",
        ".",
        "recipes=sent",
        "debug=tiny",
        "allow_targets=[evil]",
        "hydra.run.dir=run",
    ]
    assert paceline("train", *words).code == 0
    Path("ran").unlink()
    facts = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(
        json.dumps({**facts, "overrides": [*facts["overrides"], "allow_targets=[evil]"]})
    )
    refused = paceline("train", "resume=run", "max_steps=4")
    assert refused.code == 2
    assert "error[C105]" in refused.err
    assert not Path("ran").exists()
    assert paceline("train", "resume=run", "max_steps=4", "allow_targets=[evil]").code == 0


def test_a_job_of_a_sweep_goes_on_by_its_own_directory():
    assert paceline("train", "-m", "epochs=1", "seed=1,2", "hydra.sweep.dir=sweep").code == 0
    job = next(path for path in Path("sweep").iterdir() if path.is_dir())
    assert "=" in job.name
    done = paceline("train", f"resume={job}", "epochs=2")
    assert done.code == 0, done.err
    assert json.loads((job / "summary.json").read_text())["epochs"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("data", ["hdf5", "dali"])
def test_a_signal_stops_a_whole_sweep(data):
    words = [
        sys.executable,
        "-m",
        "framework",
        "train",
        "-m",
        "seed=1,2,3",
        f"data={data}",
        "epochs=3000",
        "hydra.sweep.dir=sweep",
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(
        lambda: process.poll() is not None or list(Path().glob("sweep/*/metrics.jsonl")),
        "steps",
        LIMIT_S,
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130
    assert len([path for path in Path("sweep").iterdir() if path.is_dir()]) == 1


SLOW = """
import time
from pathlib import Path
import numpy as np

def records(item):
    if item == 2999:  # it never ends, so the signal comes while it is packed
        Path("waits").touch()
        time.sleep(3600)
    yield {"x": np.zeros(1000)}
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_packing_that_is_stopped_leaves_finished_jobs_only(number, code):
    Path("slow.py").write_text(SLOW)
    words = [
        "input=function",
        "input.function=slow.records",
        "input.items=3000",
        "allow_targets=[slow]",
        "workers=2",
    ]
    command = [sys.executable, "-m", "framework", "pack", *words, "output.path=store/x.h5"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: process.poll() is not None or Path("waits").exists(), "the last item", LIMIT_S)
    process.send_signal(number)
    assert process.wait(LIMIT_S) == code
    assert set(os.listdir("store")) <= {"x.h5.parts"}  # finished jobs are kept


COUNTS = [
    "parallel.num_processes=0",
    "loader.depth=0",
    "loader.depth=-1",
    "parallel.num_processes=two",
]


@pytest.mark.parametrize("word", COUNTS)
def test_a_count_that_cannot_be_is_said(word):
    done = paceline("train", "parallel=ddp", word)
    assert done.code == 2
    assert is_one_error_line(done, "C126")


@pytest.mark.parametrize("word", ["ema_decay=2.0", "clip_norm=0"])
def test_a_value_that_learns_nothing_is_said(word):
    assert is_one_error_line(paceline("train", word), "C101")
