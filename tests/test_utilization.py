"""The benchmark of utilization measures whole epochs of every row, and keeps each at once."""

import argparse
import itertools
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
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
