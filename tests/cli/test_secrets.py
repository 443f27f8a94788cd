"""No file of a run directory holds what comes from the environment.

It does not matter which key refers to it and how the run ends.
"""

import json
from pathlib import Path

import pytest

from tests.cli.command import paceline

SECRET = "hunter2-s3cr3t"
RECIPE = """# @package _global_
defaults: [digits]
dataset: data
source: ${oc.env:PACELINE_SECRET}
model: {width: "${oc.decode:${oc.env:PACELINE_WIDTH}}"}
prepare: {train: {input: {note: "the ${source} of ${oc.env:PACELINE_SECRET}"}}}
"""


@pytest.fixture
def mine(monkeypatch):
    """Write a folder of recipes that use the environment, and return words to train with it."""
    monkeypatch.setenv("PACELINE_SECRET", SECRET)
    monkeypatch.setenv("PACELINE_WIDTH", "8")
    Path("mine/recipes").mkdir(parents=True)
    Path("mine/recipes/secret.yaml").write_text(RECIPE.replace("prepare:", "# prepare:"))
    Path("mine/recipes/failing.yaml").write_text(RECIPE + "device: ${source}\n")
    return ["train", "--config-dir", "mine", "debug=tiny", "hydra.run.dir=run"]


def leaks(*folders):
    """Return the paths of the files that hold the secret."""
    paths = [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    assert paths
    return [str(path) for path in paths if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("parallel", ["none", pytest.param("ddp", marks=pytest.mark.slow)])
def test_no_file_of_a_run_has_it(mine, parallel):
    words = ["parallel=ddp", "parallel.num_processes=2"] if parallel == "ddp" else []
    assert paceline(*mine, "recipes=secret", *words).code == 0
    assert leaks("run") == []
    resolved = json.loads(Path("run/resolved.json").read_text())
    assert resolved["source"] == "${oc.env:PACELINE_SECRET}"
    assert resolved["model"]["width"] == "${oc.decode:${oc.env:PACELINE_WIDTH}}"


def test_a_run_is_resumed_and_reported_with_it(mine):
    assert paceline(*mine, "recipes=secret").code == 0
    assert paceline("train", "resume=run", "max_steps=4").code == 0
    assert paceline("report", "run").code == 0
    assert leaks("run") == []
    assert json.loads(Path("run/summary.json").read_text())["steps"] == 4


@pytest.mark.parametrize("debug", ["trace", "tiny"])
def test_a_run_that_fails_over_it_does_not_tell_it(mine, debug):
    done = paceline(*mine, f"debug={debug}", "recipes=failing", "prepare=null")
    assert done.code in (2, 3)
    assert leaks("run") == []
    assert SECRET not in done.err.splitlines()[-1]


def test_a_sweep_does_not_write_it(mine):
    done = paceline(*mine[:-1], "-m", "recipes=secret", "seed=1,2", "hydra.sweep.dir=sweep")
    assert done.code == 0
    assert leaks("sweep") == []
