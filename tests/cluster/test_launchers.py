"""Sweeps and searches by Hydra's launchers and sweepers, with the recipes that show them."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.command import started

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TINY = ["epochs=1", "sink=[jsonl]", "hydra.sweep.dir=sweep"]


def needs(plugin: str):
    installed = (
        find_spec("hydra_plugins") is not None and find_spec(f"hydra_plugins.{plugin}") is not None
    )
    return pytest.mark.skipif(
        not installed, reason=f"no {plugin} here: 'make cluster-test' installs it"
    )


def ended() -> list[tuple[str, int]]:
    """Return (status, exit code) of each job."""
    folders = sorted(path.parent for path in Path("sweep").glob("*/exit.json"))
    codes = [json.loads((folder / "exit.json").read_text())["code"] for folder in folders]
    return [
        (json.loads((folder / "summary.json").read_text())["status"], code)
        for folder, code in zip(folders, codes, strict=True)
    ]


@needs("hydra_optuna_sweeper")
@pytest.mark.parametrize("launcher", ["basic", "devices"])
def test_a_search_finds_the_best_of_its_trials(launcher):
    words = ["hydra/sweeper=optuna", "recipes=sweep_search", "hydra.sweeper.n_trials=3"]
    words += [f"hydra/launcher={launcher}", "hydra.sweeper.n_jobs=2"]
    done = started("train", "-m", *words, *TINY, limit_s=300)
    assert done.code == 0, done.err
    assert ended() == [("finished", 0)] * 3
    best = [
        json.loads(path.read_text())["best"]["accuracy"]
        for path in Path("sweep").glob("*/summary.json")
    ]
    results = Path("sweep/optimization_results.yaml").read_text()
    assert f"best_value: {max(best)}" in results
    assert "optim.lr: " in results


@needs("hydra_submitit_launcher")
@pytest.mark.parametrize("parallel", ["none", "ddp"])
def test_jobs_in_processes_of_their_own_are_gathered(parallel):
    words = ["hydra/launcher=submitit_local", "optim.lr=0.01,0.02", f"parallel={parallel}"]
    done = started("train", "-m", *words, *TINY, limit_s=300)
    assert done.code == 0, done.err
    assert ended() == [("finished", 0)] * 2
    assert "report: " in done.out
    assert done.out.count("val loss") == 2


@needs("hydra_submitit_launcher")
def test_parts_of_a_packing_are_jobs_side_by_side():
    words = ["hydra/launcher=submitit_local", "pack.parts=3", "pack.part=range(0,3)", "workers=1"]
    done = started("pack", "-m", *words, "input=digits", "output.path=parts.h5", limit_s=300)
    assert done.code == 0, done.err
    assert started("pack", "input=digits", "output.path=whole.h5").code == 0
    assert Path("parts.h5").read_bytes() == Path("whole.h5").read_bytes()
    assert started("verify", "parts.h5").code == 0


@needs("hydra_submitit_launcher")
def test_a_job_that_fails_elsewhere_gives_the_sweep_its_exit_code():
    done = started(
        "train", "-m", "hydra/launcher=submitit_local", "optim.lr=0.01,1e9", *TINY, limit_s=300
    )
    assert done.code == 6
    assert "error[N101]" in done.out
    assert "Traceback" not in done.out + done.err


@needs("hydra_ray_launcher")
def test_jobs_on_ray():
    done = started("train", "-m", "hydra/launcher=ray", "recipes=sweep_ray", *TINY, limit_s=300)
    assert done.code == 0, done.err
    assert ended() == [("finished", 0)] * 2
