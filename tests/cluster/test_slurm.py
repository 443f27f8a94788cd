"""Jobs of a real Slurm: tasks of srun are ranks, and a job may queue itself again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import started
from tests.cluster.slurm import Slurm, refused

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "recipes/slurm/train.sbatch"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(refused()), reason=refused()),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with Slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        cluster.env["PATH"] = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
        yield cluster


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Pack digits, and return the folder that holds them."""
    folder = tmp_path_factory.mktemp("place")
    done = started(
        *("train", "recipes=digits", "dataset=packed", "max_steps=1", "hydra.run.dir=first"),
        cwd=folder,
    )
    assert done.code == 0, done.err
    return folder


def log(run_dir):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(line["split"], line["step"], line["loss"].hex(), line["lr"].hex()) for line in lines]


def submitted(slurm, place, *words):
    done = subprocess.run(
        ["sbatch", "--parsable", *words],
        cwd=place,
        env=slurm.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_tasks_of_srun_are_ranks(slurm, place):
    words = [
        *("train", "parallel=ddp", "recipes=digits", "dataset=packed", "epochs=2", "sink=[jsonl]"),
    ]
    job = submitted(
        slurm,
        place,
        "--ntasks=2",
        "--output=two.txt",
        f"--wrap=srun paceline {' '.join(words)} hydra.run.dir=two",
    )
    assert slurm.ended(job, 120) == "COMPLETED", (place / "two.txt").read_text()
    done = started(*words, "parallel.num_processes=2", "hydra.run.dir=alone", cwd=place)
    assert done.code == 0, done.err
    assert log(place / "two") == log(place / "alone")
    assert json.loads((place / "two/exit.json").read_text())["code"] == 0


def test_a_job_that_gets_a_signal_before_its_time_limit_queues_itself_again_and_learns_the_same(
    slurm, place
):
    words = [
        *("recipes=digits", "dataset=packed", "epochs=150", "batch_size=96", "report_every=20"),
        "sink=[jsonl]",
    ]
    limits = ["--time=1", "--signal=USR1@58", "--output=limit.txt"]
    job = submitted(slurm, place, *limits, str(SCRIPT), *words, "hydra.run.dir=limit")
    slurm._until(
        lambda: slurm.facts(job).get("Restarts", "0") != "0", "word before the time limit", 200
    )
    slurm.ask("scontrol", "update", f"jobid={job}", "TimeLimit=10")
    assert slurm.ended(job, 300) == "COMPLETED", (place / "limit.txt").read_text()
    assert int(slurm.facts(job)["Restarts"]) >= 1
    done = started(
        *("train", *words, "parallel=ddp", "parallel.num_processes=2", "hydra.run.dir=unlimited"),
        cwd=place,
    )
    assert done.code == 0, done.err
    assert log(place / "limit") == log(place / "unlimited")


def test_a_job_that_gets_a_signal_before_its_first_step_queues_itself_again(slurm, place):
    words = ["recipes=digits", "dataset=packed", "epochs=2", "sink=[jsonl]"]
    job = submitted(
        slurm, place, "--time=10", "--output=early.txt", str(SCRIPT), *words, "hydra.run.dir=early"
    )
    slurm._until(
        lambda: f"{job}.0" in slurm.ask("squeue", "--steps", "--noheader", "--format=%i"),
        "its step",
        60,
    )
    slurm.ask("scancel", "--signal=USR1", f"{job}.0")
    slurm._until(lambda: slurm.facts(job).get("Restarts", "0") != "0", "its place in the queue", 60)
    assert not (place / "early/metrics.jsonl").exists()
    assert slurm.ended(job, 300) == "COMPLETED", (place / "early.txt").read_text()
    assert log(place / "early")


def test_a_job_that_fails_is_not_queued_again(slurm, place):
    job = submitted(
        slurm,
        place,
        "--output=bad.txt",
        str(SCRIPT),
        "recipes=digits",
        "dataset=packed",
        "optim.lr=1e9",
        "hydra.run.dir=bad",
    )
    assert slurm.ended(job, 120) == "FAILED"
    assert slurm.facts(job)["ExitCode"] in (
        "6:0",
        "7:0",
    )  # srun's is the highest: of the rank that saw it, or of the other
    assert "error[N101]" in (place / "bad.txt").read_text()


def test_a_sweep_is_an_array_of_jobs(slurm, place):
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="'make cluster-test' installs it"
    )
    words = [
        "hydra/launcher=submitit_slurm",
        "recipes=sweep_slurm",
        "hydra.launcher.cpus_per_task=1",
        "optim.lr=0.01,0.02",
    ]
    common = ["recipes=digits", "dataset=packed", "epochs=1", "sink=[jsonl]"]
    done = started(
        "train", "-m", *words, *common, "hydra.sweep.dir=sweep", cwd=place, limit_s=300, **slurm.env
    )
    assert done.code == 0, done.err
    assert "report: " in done.out
    alone = started(
        "train", "-m", "optim.lr=0.01,0.02", *common, "hydra.sweep.dir=alone-sweep", cwd=place
    )
    assert alone.code == 0, alone.err
    logs = [
        [log(path) for path in sorted(place.glob(f"{name}/[0-9]*"))]
        for name in ("sweep", "alone-sweep")
    ]
    assert len(logs[0]) == 2
    assert logs[0] == logs[1]


def test_a_packing_is_an_array_of_jobs(slurm, place):
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="'make cluster-test' installs it"
    )
    words = [
        *("hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1", "pack.parts=3"),
        *("pack.part=range(0,3)", "workers=1"),
    ]
    done = started(
        *("pack", "-m", *words, "input=digits", "output.path=parts.h5"),
        cwd=place,
        limit_s=300,
        **slurm.env,
    )
    assert done.code == 0, done.err
    assert started("pack", "input=digits", "output.path=whole.h5", cwd=place).code == 0
    assert (place / "parts.h5").read_bytes() == (place / "whole.h5").read_bytes()
