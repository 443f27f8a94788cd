"""benchmarks/data.py runs and counts correctly; the figures that it measures are not tested."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from peers import report

    return report


def make_images(folder: Path, count: int, side: int) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        folder.joinpath("train").mkdir(parents=True, exist_ok=True)
        colors = rng.integers(0, 256, (3, 4, 3), np.uint8)
        Image.fromarray(colors).resize((side + side // 2 * (side > 32), side)).save(
            folder / f"train/{number:03}.jpg"
        )
    return folder


def run(*arguments: str) -> tuple[subprocess.CompletedProcess, str]:
    command = [
        *(sys.executable, str(BENCHMARKS / "data.py"), *arguments, "--work", "work", "--results"),
        "results",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    return done, done.stdout


@pytest.mark.slow
def test_a_quick_run_compares_equal_work_and_writes_it_down(tmp_path):
    images, small = make_images(tmp_path / "images", 8, 96), make_images(tmp_path / "small", 20, 32)
    counts = ["--images-count", "80", "--small-count", "200", "--laps", "1", "--workers", "1"]
    only = ["--only", "paceline folder", "--only", "DataLoader + Pillow", "--only", "TensorDataset"]
    words = ("--workloads", "AD", "--images", str(images), "--cifar", str(small))
    done, text = run("--quick", *words, *counts, *only)
    assert done.returncode == 0, done.stderr
    assert "**paceline folder**" in text
    assert "DataLoader + Pillow" in text
    results = json.loads(next(Path("results").glob("*-data-quick.json")).read_text())
    assert [row["records"] for row in results["results"] if row["workload"] == "D"] == [20]
    assert not results["failed"]
    assert all(row["memory_bytes"] > 0 and row["first_s"] > 0 for row in results["results"])


def result(name: str, role: str, number: int, rates: list[float], **facts) -> dict:
    row = {"workload": "D", "filter": "-", "name": name, "role": role}
    row |= {"round": number, "rates": rates, "first_s": 0.1}
    checked = {"records": 4, "distinct": 4, "shuffled": True}
    checked |= {"shape": [4, 3, 32, 32], "dtype": "torch.uint8", "mean": 1.0}
    return {**row, "memory_bytes": 1, **checked, **facts}


def test_a_ratio_is_taken_inside_a_round(report):
    peers = [result("a", "peer", 0, [1.0]), result("b", "peer", 0, [0.5])]
    slow_round = [result("ours", "ours", 0, [2.0, 2.0, 4.0]), *peers]
    peers = [result("a", "peer", 1, [10.0]), result("b", "peer", 1, [20.0])]
    fast_round = [result("ours", "ours", 1, [60.0]), *peers]
    table = report.Table(slow_round + fast_round)
    name, best = table.best_peer("D", "-")
    assert (name, best) == ("b", {0: 1.0, 1: 20.0})
    assert table.ratio(table.by_round(("D", "-", "ours")), best) == pytest.approx(
        2.5
    )  # the median of 2 and 3


@pytest.mark.parametrize(
    "facts",
    [
        *({"distinct": 3}, {"shuffled": False}, {"dtype": "torch.float32"}),
        *({"shape": [4, 32, 32, 3]}, {"mean": 1.1}),
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_a_contestant_that_does_other_work_is_marked(report, facts):
    table = report.Table(
        [result("ours", "ours", 0, [1.0]), result("peer", "peer", 0, [9.0], **facts)]
    )
    assert set(report.wrong_output(table, {"D": 4})) == {("D", "-", "peer")}


def test_memory_is_that_of_the_whole_tree(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from peers.measure import tree_bytes

    inner = "import sys; held = b'x' * 40_000_000; print('held', flush=True); sys.stdin.readline()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", outer], start_new_session=True, **pipes) as child:
        assert child.stdout.readline() == "held\n"
        assert 40_000_000 < tree_bytes(child.pid) < 140_000_000
        child.communicate("\n")
