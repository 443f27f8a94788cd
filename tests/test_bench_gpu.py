"""benchmarks/gpu.py gets through on a CPU, where its figures mean nothing: whoever has a GPU for nine minutes should not find its mistakes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "benchmarks/gpu.py"


def run(*arguments):
    command = [
        sys.executable,
        str(SCRIPT),
        "--device",
        "cpu",
        "--small",
        "--seconds",
        "0.05",
        "--minutes",
        "7",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def found_by(*parts):
    """What these parts found, and what was printed."""
    done = run("--only", ",".join(parts))
    assert done.returncode == 0, done.stdout
    found = json.loads(Path("gpu.json").read_text())
    assert list(found) == list(parts)
    return found, done


@pytest.mark.timeout(550)
def test_its_checks_and_comparisons_of_runs_print_tables_and_are_kept():
    found, _ = found_by("facts", "same", "replicas")
    assert all(found["same"].values())
    assert set(found["replicas"]) == {"none", "dp", "ddp"}


@pytest.mark.timeout(550)
def test_its_figures_print_tables_and_are_kept():
    found, done = found_by("loading", "overlap", "overhead", "augments", "switches", "dali")
    assert found["augments"]["crop_flip"]["apart"] == 0
    kinds = ("none", "normalize", "store")
    assert set(found["loading"]) == {
        f"{loader}/{kind}" for loader in ("plain", "prefetch", "stream") for kind in kinds
    }
    (rates,) = found["switches"].values()
    assert {"fp32", "bf16", "fp16", "bf16, channels_last, CUDA graph"} <= rates.keys(), done.stdout
    assert "kornia" in done.stdout


def test_a_part_that_fails_is_told_and_the_others_go_on():
    done = run("--only", "cifar10_fast,facts", "--cifar10", "nowhere")
    assert done.returncode == 1
    found = json.loads(Path("gpu.json").read_text())
    assert "nowhere" in found["cifar10_fast"]["failed"]
    assert found["facts"]["num_cores"] > 0


def test_what_there_is_no_time_for_is_left_out():
    done = run("--only", "facts,same", "--minutes", "0.02")
    assert done.returncode == 1
    found = json.loads(Path("gpu.json").read_text())
    assert "was not done in the 1 s" in found["facts"]["failed"]
    assert "no time was left" in found["same"]["failed"]


def test_where_there_is_no_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin"},
    )
    assert (done.returncode, done.stdout) == (0, "no CUDA device here: nothing run\n")
