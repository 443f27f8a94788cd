from dataclasses import replace

import numpy as np
import pytest

from framework.cli.run_records import chosen, varying
from framework.commands.report.page_values import (
    ABSENT,
    alike,
    differences,
    labels,
    relative,
)
from framework.commands.report.recorded_runs import MetricCurve, RecordedRun


def run(name="a", rate=None, status="finished", losses=(), **choices):
    steps = np.arange(1.0, len(losses) + 1)
    curve = MetricCurve(steps, steps, np.array(losses, np.float64))
    curves = {("train", "loss"): curve} if losses else {}
    return RecordedRun(name, name, status, choices=choices, records_per_s=rate, curves=curves)


def test_runs_are_called_by_what_differs():
    runs = [run(data="hdf5", epochs="2", lr="0.1"), run(data="lmdb", epochs="2", lr="0.2")]
    assert varying(runs) == ["data", "lr"]
    assert labels(runs) == ["hdf5 · lr=0.1", "lmdb · lr=0.2"]


def test_what_was_not_asked_for_is_what_the_configuration_has():
    config = {
        "epochs": 10,
        "loader._target_": "framework.loader.plain.PlainLoader",
        "model._target_": "Net",
        "optim._target_": "torch.optim.SGD",
    }
    recorded = RecordedRun("a", "a", config=config)
    keys = ("epochs", "loader", "model", "optim", "data")
    assert [chosen(recorded, key) for key in keys] == ["10", "plain", "Net", "SGD", "default"]


def test_only_keys_that_differ_are_reported_with_the_value_of_each_rank():
    differing = differences(
        [{"a": 1, "b": [1]}, {"a": 1, "b": [2], "c": 3}, {}, {"a": 1, "b": [1], "c": 3}]
    )
    assert [(d.key, d.values) for d in differing] == [
        ("b", [("[1]", [0, 3]), ("[2]", [1])]),
        ("c", [(ABSENT, [0]), ("3", [1, 3])]),
    ]
    assert [d.key for d in differences([{"a": 1}, {"a": 1}], everything=True)] == ["a"]


@pytest.mark.parametrize(
    ("to", "base", "times"),
    [("first", 1, [None, 1.0, 2.0, 0.5]), ("slowest", 2, [None, 0.5, 1.0, 0.25])],
)
def test_times_are_multiples_of_the_base(to, base, times):
    runs = [run(status="failed"), run(rate=100.0), run(rate=50.0), run(rate=200.0)]
    assert relative(runs, to) == (base, times)


def test_of_a_bench_the_median_of_the_rounds_counts():
    base = RecordedRun("a", "a", records_per_s=100.0, rounds={0: 100.0, 1: 50.0, 2: 120.0})
    other = RecordedRun("a", "a", records_per_s=100.0, rounds={0: 200.0, 1: 100.0, 2: 60.0, 3: 1.0})
    # another bench, whose rounds were other minutes
    elsewhere = RecordedRun("b", "b", records_per_s=100.0, rounds={0: 200.0})
    assert relative([base, other, elsewhere], "first").times == [1.0, 0.5, 1.0]
    assert relative([base, replace(other, what="loader")], "first").times == [1.0, None]


def test_runs_that_learned_the_same_are_found():
    runs = [run(losses=losses) for losses in ([3, 2], [3, 2.1], [], [3, 2], [3, 2, 1])]
    assert alike(runs) == [[0, 3], [1], [4]]
