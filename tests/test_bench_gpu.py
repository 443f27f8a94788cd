"""benchmarks/gpu.py runs to its end on a CPU, where its figures mean nothing.

Its mistakes must show here, and not to somebody who has a GPU for nine minutes.
"""

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


def results_of(*parts):
    """Return the results of these parts, and the finished process."""
    done = run("--only", ",".join(parts))
    assert done.returncode == 0, done.stdout
    results = json.loads(Path("gpu.json").read_text())
    assert list(results) == list(parts)
    return results, done


@pytest.mark.timeout(550)
def test_its_checks_and_comparisons_of_runs_print_tables_and_are_kept():
    results, _ = results_of("facts", "same", "replicas")
    assert all(results["same"].values())
    assert set(results["replicas"]) == {"none", "dp", "ddp"}


@pytest.mark.timeout(550)
def test_its_figures_print_tables_and_are_kept():
    results, done = results_of("loading", "overlap", "overhead", "augments", "switches", "dali")
    assert results["augments"]["crop_flip"]["apart"] == 0
    kinds = ("none", "normalize", "store")
    assert set(results["loading"]) == {
        f"{loader}/{kind}" for loader in ("plain", "prefetch", "stream") for kind in kinds
    }
    (rates,) = results["switches"].values()
    assert {"fp32", "bf16", "fp16", "bf16, channels_last, CUDA graph"} <= rates.keys(), done.stdout
    assert "kornia" in done.stdout


def test_a_part_that_fails_is_reported_and_the_others_run():
    done = run("--only", "cifar10_fast,facts", "--cifar10", "nowhere")
    assert done.returncode == 1
    results = json.loads(Path("gpu.json").read_text())
    assert "nowhere" in results["cifar10_fast"]["failed"]
    assert results["facts"]["num_cores"] > 0


def test_what_has_no_time_left_is_skipped():
    done = run("--only", "facts,same", "--minutes", "0.02")
    assert done.returncode == 1
    results = json.loads(Path("gpu.json").read_text())
    assert "was not done in the 1 s" in results["facts"]["failed"]
    assert "no time was left" in results["same"]["failed"]


def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin"},
    )
    assert (done.returncode, done.stdout) == (0, "no CUDA device here: nothing run\n")
