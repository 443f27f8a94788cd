import json
from pathlib import Path

import pytest

from framework.commands.bench.bench_lines import (
    SCHEMA,
    Bench,
    BenchCell,
    collected,
    print_bench,
    read_lines,
)
from framework.errors import ConfigError

CELLS = [{"data": "hdf5"}, {"data": "lmdb"}]
HEADER = {"bench": SCHEMA, "cells": CELLS, "machine": {}, "versions": {}, "what": "train"}


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
        line("hdf5", 0, 100.0),
        line("hdf5", 1, 10.0),
        line("lmdb", 0, 200.0),
        line("lmdb", 1, 20.0),
        line("hdf5", 2, 77.0),
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
        "",
        "hello",
        "{}",
        "[]",
        json.dumps(HEADER) + "\n{",
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


def measured(choice, *rates, **more):
    return BenchCell(choice, {(0, repeat): rate for repeat, rate in enumerate(rates)}, **more)


def test_rates_are_relative_to_the_first_that_runs(capsys):
    cells = [
        measured({"data": "none"}, illegal="error[C104]: no such choice"),
        measured(CELLS[0], 100.0, 100.0, waiting=0.25),
        measured(CELLS[1], 200.0, 200.0),
    ]
    print_bench(cells, "train")
    out = capsys.readouterr().out
    assert "2.00x" in out
    assert "does not run" in out
    assert "25%" in out
    assert out.splitlines()[-1] == "data=none: error[C104]: no such choice"
