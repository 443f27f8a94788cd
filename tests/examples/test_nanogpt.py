"""Somebody's GPT on a file of tokens learns with Paceline what it learns in its loop."""

import csv
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.command import losses, paceline

PORTS = Path(__file__).parents[2] / "examples" / "ports"
ALLOWED = "allow_targets=[nanogpt,blocks]"
WORDS = (
    *("train", "--config-dir", ".", "recipes=nanogpt", ALLOWED, "init=start.pth"),
    *("workers.num=0", "device=cpu", "report_every=1"),
)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a folder with the project, two files of tokens, and weights to start from."""
    folder = tmp_path_factory.mktemp("gpt") / "project"
    shutil.copytree(PORTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    rng = np.random.default_rng(0)
    for name, count in (("train.bin", 8000), ("val.bin", 1500)):
        tokens = rng.integers(1, 4, count).cumsum() % 65
        tokens.astype(np.uint16).tofile(folder / name)
    torch.manual_seed(0)
    torch.save(imported(folder).GPT().state_dict(), folder / "start.pth")
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    """Let the plain loop add in the order of the run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def imported(folder):
    sys.path.insert(0, str(folder))
    import nanogpt

    sys.path.remove(str(folder))
    return nanogpt


def run(folder, *words):
    done = paceline(*words, cwd=folder, **ONE_THREAD)
    assert done.code == 0, done.err


def test_it_has_the_losses_of_its_loop(project, monkeypatch):
    run(project, *WORDS, "hydra.run.dir=run")
    monkeypatch.chdir(project)
    expected, estimates = imported(project).train("start.pth")
    assert losses(project / "run") == expected
    assert losses(project / "run", "val") == estimates
    assert expected[-1] < 0.4 * expected[0]


@pytest.mark.slow
def test_a_resumed_one_learns_the_same_predicts_and_exports(project):
    run(project, *WORDS, "hydra.run.dir=whole")
    run(project, *WORDS, "hydra.run.dir=parts", "max_steps=25")
    run(project, "train", "resume=parts", "max_steps=null", ALLOWED)
    assert losses(project / "parts") == losses(project / "whole")
    parts, whole = (project / name / "checkpoints" / "last.pt" for name in ("parts", "whole"))
    assert parts.read_bytes() == whole.read_bytes()
    dataset = "{_target_: blocks.Blocks, path: val.bin, num: 4}"
    given = ("input=dataset", f"input.dataset={dataset}", "input.fields=[x,y]")
    run(project, "predict", "run=parts", *given, "output=scores.csv", ALLOWED)
    with open(project / "scores.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert f"value_{32 * 65 - 1}" in rows[0]
    run(project, "export", "run=parts", "to=torch_export", "output=gpt.pt2", ALLOWED)
