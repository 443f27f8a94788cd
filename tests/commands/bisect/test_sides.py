"""The sides of a bisection, read from runs and benches."""

import json

import pytest

from framework.cli.allowed import Grant
from framework.commands.bisect.sides import read_sides
from framework.errors import ConfigError
from tests.saved_runs import digits_run, summary_of

NOBODY = Grant(typed=False, exported="")


def bench(path, rates, overrides=("recipes=digits",), what="train", **header):
    """Write a bench with a cell for each loader of ``rates``."""
    cells = [{"loader": name} for name in rates]
    first = {
        "bench": 1,
        "cells": cells,
        "machine": {},
        "versions": {},
        "overrides": list(overrides),
        "what": what,
        "git": "abc",
        **header,
    }
    lines = [
        {"cell": {"loader": name}, "repeat": 0, "records_per_s": own, "spans_s": {}}
        for name, own in rates.items()
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (first, *lines)))
    return str(path)


def test_the_cells_that_differ_most_are_compared(tmp_path):
    first = bench(tmp_path / "a.jsonl", {"plain": 100.0, "prefetch": 100.0})
    second = bench(tmp_path / "b.jsonl", {"plain": 99.0, "prefetch": 80.0}, ("seed=3",))
    before, after = read_sides(first, second, NOBODY, ())
    assert "prefetch" in before.config["loader"]["_target_"]
    assert (before.rate, after.rate) == (100.0, 80.0)
    assert (before.config["seed"], after.config["seed"]) == (0, 3)
    assert after.name.endswith("b.jsonl (loader=prefetch)")
    assert before.commit == "abc"


def test_a_run_is_compared_with_a_bench_of_one_combination(tmp_path):
    run = digits_run(tmp_path, "max_steps=1")
    single = bench(tmp_path / "one.jsonl", {"plain": 100.0})
    before, after = read_sides(str(run), single, NOBODY, ())
    assert before.rate == summary_of(run)["records_per_s"]
    assert before.versions["torch"]
    assert after.rate == 100.0
    several = bench(tmp_path / "two.jsonl", {"plain": 100.0, "stream": 1.0})
    with pytest.raises(ConfigError, match="C346"):
        read_sides(str(run), several, NOBODY, ())


def test_what_cannot_be_compared_is_said(tmp_path):
    first = bench(tmp_path / "one.jsonl", {"plain": 100.0, "stream": 100.0})
    other = bench(tmp_path / "other.jsonl", {"prefetch": 1.0})
    loaders = bench(tmp_path / "loaders.jsonl", {"plain": 1.0}, what="loader")
    hosts = ("parallel=ddp", "parallel.num_nodes=2", "parallel.endpoint=one:29500")
    far = bench(tmp_path / "far.jsonl", {"plain": 1.0}, hosts)
    for path, number in (("none", 345), (loaders, 346), (other, 346)):
        with pytest.raises(ConfigError, match=f"C{number}"):
            read_sides(first, path, NOBODY, ())
    with pytest.raises(ConfigError, match="C347"):
        read_sides(far, far, NOBODY, ())


def test_a_run_is_measured_with_the_ranks_that_it_had(tmp_path):
    run = digits_run(tmp_path, "max_steps=1")
    for name, text in {
        "resolved.json": {"parallel": {"_target_": "framework.parallel.ddp.D", "num_processes": 2}},
        "run.json": {"starts": [{"step": 0, "ranks": 2}, {"step": 5, "ranks": 8}]},
    }.items():
        known = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps({**known, **text}))
    before, after = read_sides(str(run), str(run), NOBODY, ("framework",))
    assert before.config["parallel"]["num_processes"] == 8
    assert after.config["parallel"]["num_processes"] == 8
