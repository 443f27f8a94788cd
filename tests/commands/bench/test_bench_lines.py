import json
from pathlib import Path

import numpy as np
import pytest

from framework.commands.bench import bench_lines
from framework.commands.bench.bench_lines import (
    SCHEMA,
    Bench,
    BenchCell,
    DecisionRule,
    collected,
    judged,
    notes,
    print_bench,
    read_lines,
)
from framework.errors import ConfigError

CELLS = [{"data": "hdf5"}, {"data": "lmdb"}]
HEADER = {"bench": SCHEMA, "cells": CELLS, "machine": {}, "versions": {}, "what": "train"}
DEFAULT = DecisionRule()
STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]


def measured(rates, data: str = "hdf5", illegal: str = "", **more) -> BenchCell:
    by_repeat = {(0, repeat): rate for repeat, rate in enumerate(rates)}
    return BenchCell({"data": data}, by_repeat, illegal=illegal, **more)


def line(data: str, repeat: int, rate: float, wait: float = 1.0) -> dict:
    spans = {"wait": wait, "forward": 3.0}
    return {"cell": {"data": data}, "repeat": repeat, "records_per_s": rate, "spans_s": spans}


def test_a_cell_has_the_median_and_the_spread_of_its_repeats():
    lines = [
        line("lmdb", 0, 5.0),
        *(line("hdf5", repeat, rate) for repeat, rate in enumerate([10.0, 30.0, 20.0, 40.0, 50.0])),
    ]
    first, second = collected([Bench(HEADER, lines)])
    assert (first.choice, first.records_per_s) == ({"data": "hdf5"}, 30.0)
    assert first.spread == pytest.approx(10 / 30)
    assert (second.records_per_s, second.spread) == (5.0, 0.0)
    assert first.waiting == pytest.approx(0.25)


def test_cells_are_compared_inside_a_repeat():
    slow_minute = [
        *(line("hdf5", 0, 100.0), line("hdf5", 1, 10.0), line("lmdb", 0, 200.0)),
        *(line("lmdb", 1, 20.0), line("hdf5", 2, 77.0)),
    ]
    first, second = collected([Bench(HEADER, slow_minute)])
    assert second.relative_to(first) == 2.0
    assert collected([Bench(HEADER, [line("hdf5", 7, 1.0)])])[0].relative_to(second) is None


def test_a_cell_that_failed_after_a_repeat_does_not_run():
    failed = Bench(HEADER, [line("hdf5", 0, 1.0), {"cell": {"data": "hdf5"}, "illegal": "why"}])
    assert collected([failed])[0].illegal == "why"
    assert not collected([failed])[0].runs


@pytest.mark.parametrize(
    "text",
    [
        *("", "hello", "{}", "[]", json.dumps(HEADER) + "\n{"),
        json.dumps(HEADER) + "\n" + json.dumps({"cell": {}, "repeat": 0}),
        json.dumps(HEADER) + "\n" + json.dumps({**line("hdf5", 0, 1.0), "records_per_s": "fast"}),
        json.dumps(HEADER) + "\n" + json.dumps({**line("hdf5", 0, 1.0), "cell": ["hdf5"]}),
        json.dumps(HEADER) + "\n" + json.dumps({**line("hdf5", 0, 1.0), "spans_s": {"wait": None}}),
        json.dumps(HEADER) + "\n" + json.dumps(line("hdf5", 0, 0.0)),
        json.dumps({**HEADER, "cells": [5]}),
        json.dumps({**HEADER, "bench": 0}),
        "\xff",
    ],
)
def test_what_is_no_bench_is_refused(text):
    Path("a.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="C187"):
        read_lines(Path("a.jsonl"))
    with pytest.raises(ConfigError, match=r"C187.*No such file"):
        read_lines(Path("nowhere.jsonl"))


def test_rates_are_relative_to_the_first_that_runs(capsys):
    cells = [
        measured([], "none", illegal="error[C104]: no such choice"),
        measured([100.0, 100.0], "hdf5", waiting=0.25),
        measured([200.0, 200.0], "lmdb"),
    ]
    print_bench(cells, "train")
    out = capsys.readouterr().out
    assert "2.00x" in out
    assert "does not run" in out
    assert "25%" in out
    assert out.splitlines()[-1] == "data=none: error[C104]: no such choice"


def word(before, after, rule: DecisionRule = DEFAULT) -> str:
    return judged([measured(before)], [measured(after)], rule)[0].word


def test_ten_percent_slower_is_slower_and_the_other_way_faster():
    slower = [0.9 * rate for rate in STEADY]
    assert word(STEADY, slower) == bench_lines.SLOWER
    assert word(slower, STEADY) == bench_lines.FASTER
    (verdict,) = judged([measured(STEADY)], [measured(slower)], DEFAULT)
    assert verdict.change == pytest.approx(-0.1)


def test_a_sure_difference_below_the_threshold_does_not_matter():
    slower = [0.975 * rate for rate in STEADY]
    assert word(STEADY, slower) == bench_lines.NOISE
    assert word(STEADY, slower, DecisionRule(threshold=0.02)) == bench_lines.SLOWER


@pytest.mark.parametrize("kind", ["normal", "two humps", "long tail"])
def test_chance_alone_passes_at_most_once_in_a_hundred(kind):
    rng = np.random.default_rng(0)
    draw = {
        "normal": lambda: rng.normal(100, 5, 5),
        "two humps": lambda: rng.normal(100, 1, 5) - 20 * (rng.random(5) < 0.5),
        "long tail": lambda: 100 / (1 + 0.02 * rng.pareto(1.5, 5)),
    }[kind]
    words = [word(list(draw()), list(draw())) for _ in range(1000)]
    assert sum(verdict != bench_lines.NOISE for verdict in words) <= 20  # 8 are expected


def test_cells_of_one_side_and_cells_that_do_not_run_are_reported():
    before = [measured(STEADY, name) for name in "ab"]
    before += [measured([], name, "why") for name in "cd"]
    after = [measured(STEADY, name) for name in "ce"]
    after += [measured([], name, "why") for name in "bd"]
    verdicts = judged(before, after, DecisionRule())
    words = {verdict.choice["data"]: verdict.word for verdict in verdicts}
    one_sided = {"a": bench_lines.ONLY_BEFORE, "e": bench_lines.ONLY_AFTER}
    broken = {"b": bench_lines.BROKEN, "c": bench_lines.MENDED, "d": bench_lines.NEITHER}
    assert words == one_sided | broken
    assert [verdict.choice["data"] for verdict in verdicts if verdict.regressed] == ["b"]


def bench(speeds=(), **changes) -> Bench:
    header = {"machine": {"processor": "x"}, "versions": {"torch": "2.13"}, "overrides": []}
    lines = [{"repeat": repeat, "yardstick_per_s": speed} for repeat, speed in enumerate(speeds)]
    return Bench({**header, **changes}, lines)


def test_another_machine_another_version_and_other_settings_are_noted():
    newer = {"machine": {"processor": "y"}, "versions": {"torch": "2.14"}}
    other = bench(**newer, overrides=["workers.num=2"])
    assert list(notes([bench()], [other], DEFAULT)) == [
        "another machine: processor was x, is y",
        "another version: torch was 2.13, is 2.14",
        "measured differently: overrides was empty, is workers.num=2",
    ]


def test_a_machine_that_was_itself_slower_is_noted():
    slower = bench([0.9 * speed for speed in STEADY])
    (note,) = notes([bench(STEADY)], [slower], DEFAULT)
    assert note.startswith("the machine itself was 10.0% slower in the second, ")
    same = bench([0.98 * speed for speed in STEADY])
    assert list(notes([bench(STEADY)], [same], DEFAULT)) == []


def test_a_comparison_has_a_row_per_cell(capsys):
    before, after = [measured([100.0] * 6, "a")], [measured([50.0] * 6, "a"), measured([1.0], "b")]
    bench_lines.print_verdicts(judged(before, after, DEFAULT), "train")
    out = capsys.readouterr().out
    assert "-50.0%" in out
    assert "only in the second" in out
