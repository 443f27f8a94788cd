from framework.commands.bench.bench_lines import BenchCell
from framework.commands.bench.compare_benches import DecisionRule, judged
from framework.commands.bench.print_bench import (
    MeasuringProgress,
    print_bench,
    print_verdicts,
)

CHOICES = [{"data": "hdf5"}, {"data": "lmdb"}]


def measured(choice, *rates, **more):
    return BenchCell(choice, {(0, repeat): rate for repeat, rate in enumerate(rates)}, **more)


def test_rates_are_relative_to_the_first_that_runs(capsys):
    cells = [
        measured({"data": "none"}, illegal="error[C104]: no such choice"),
        measured(CHOICES[0], 100.0, 100.0, waiting=0.25),
        measured(CHOICES[1], 200.0, 200.0),
    ]
    print_bench(cells, "train")
    out = capsys.readouterr().out
    assert "2.00x" in out
    assert "does not run" in out
    assert "25%" in out
    assert out.splitlines()[-1] == "data=none: error[C104]: no such choice"


def test_each_measurement_is_one_line_without_a_terminal(capsys):
    with MeasuringProgress(["data=hdf5", "data=lmdb"], 2, 5.0) as progress:
        progress.add({"cell": CHOICES[0], "records_per_s": 1234.0})
        progress.add({"cell": CHOICES[1], "illegal": "why"})
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith("2 combinations, 2 repeats each: about 0:00:20")
    assert lines == ["1/4  data=hdf5  1,234 records/s", "3/4  data=lmdb  why"]


def test_a_comparison_has_a_row_per_cell(capsys):
    before = [measured(CHOICES[0], *[100.0] * 6)]
    after = [measured(CHOICES[0], *[50.0] * 6), measured(CHOICES[1], 1.0)]
    print_verdicts(judged(before, after, DecisionRule()), "train")
    out = capsys.readouterr().out
    assert "-50.0%" in out
    assert all(choice["data"] in out for choice in CHOICES)
