"""Benchmarks are run by hand, and seldom: what they use must exist, and their parts must work."""

import argparse
import ast
import importlib
import itertools
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import make_records, write_store

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted([*BENCHMARKS.glob("*.py"), *BENCHMARKS.glob("planted/*.py")])


def exists(module, name):
    """Return whether a module has that attribute or submodule."""
    imported = importlib.import_module(module)
    if hasattr(imported, name):
        return True
    return hasattr(imported, "__path__") and find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_benchmark_takes_of_the_framework_is_there(path):
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if (node.module or "").startswith("framework")]
    taken = [(node.module, alias.name) for node in ours for alias in node.names]
    gone = [f"{module}.{name}" for module, name in taken if not exists(module, name)]
    assert not gone


@pytest.fixture
def goals(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_goals

    return gpu_goals


def test_a_figure_meets_its_goal_or_misses_it_or_was_not_measured(goals):
    rows = goals.judged("overhead", {"kernel by kernel": {"us": 15.0}})
    assert [row[1:] for row in rows] == [("<= 15", "15", "yes"), ("<= 3", "not measured", "open")]
    rows = goals.judged("overhead", {"kernel by kernel": {"us": 15.1}, "one graph": {"us": 2}})
    assert [row[3] for row in rows] == ["no", "yes"]


def test_goals_are_of_parts_that_exist(goals):
    import gpu

    assert {goal.part for goal in goals.GOALS} <= set(gpu.PARTS)


def test_the_page_of_goals_has_every_target(goals):
    page = (BENCHMARKS.parent / "docs" / "measured.md").read_text()
    table = page.partition("| goal | target | measured |")[2].strip().partition("\n\n")[0]
    rows = table.splitlines()[1:]
    targets = [str(goal.limit).removesuffix(".0") for goal in goals.GOALS]
    assert len(rows) == len(targets) - 1  # the two kinds of step share a row
    assert all(any(target in row for row in rows) for target in targets)


def test_records_are_read_while_a_thread_launches(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import launch

    path = write_store(str(tmp_path / "a.h5"), make_records(200))
    beside = launch.beside_reading([f"data.train={path}", "workers.num=1"], 0.1, 0.05)
    assert beside.operations_per_s > 0
    assert beside.records_per_s > 0
    assert launch.beside_hashing(0.05) > 0


OPTIONS = {"device": "cpu", "seconds": 0.01, "small": True, "cifar10": None, "nets": "resnet18"}


@pytest.fixture
def bench(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    return gpu.Bench(argparse.Namespace(**OPTIONS, images=None), tmp_path)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_every_row_is_measured_and_kept(bench, capsys, monkeypatch):
    import utilization

    monkeypatch.setattr(utilization, "import_module", lambda name: __import__("absent_" + name))
    utilization.utilization(bench)
    result = json.loads((bench.work / "result.json").read_text())["tiny"]
    lines = capsys.readouterr().out.splitlines()
    assert sum("not here" in line for line in lines) in (4, 5)  # the peers; DALI may be missing
    rows = {name: row for name, row in result.items() if "alone" not in name}
    assert {"raw store 256", "JPEG store, full size", "JPEGs in a folder, full size"} <= set(rows)
    for row in rows.values():
        assert row["utilization"] > 0
        assert row["first_step_s"] > 0
        assert row["p99_wait_ms"] >= 0


def test_a_meter_counts_whole_epochs_after_the_first(bench, monkeypatch):
    import utilization

    clock = itertools.count()
    monkeypatch.setattr(utilization.time, "perf_counter", lambda: next(clock))
    bench.seconds = 9
    meter = utilization.Meter(bench, argparse.Namespace(num_steps=3, batch_size=8))
    num_steps = 1
    while not meter.is_done():
        assert list(meter.timed(range(1))) == [0]
        num_steps += 1
    assert num_steps % 3 == 0
    assert len(meter.waits_s) == num_steps - 3
    seconds = 8 * (num_steps - 3) / meter.result["images_per_s"]
    assert bench.seconds <= seconds <= 2 * bench.seconds
