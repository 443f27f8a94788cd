from dataclasses import replace

from framework.commands.report.compare_runs import relative
from framework.commands.report.figures_table import (
    ranks_table,
    runs_table,
    slow_table,
)
from framework.commands.report.read_run import read_run
from framework.contracts.rank_spans import RankReport, RankSpan
from tests.commands.report.runs import lines_of, make_run


def column(table, name):
    place = [title for title, _ in table.columns].index(name)
    return [row[place] for row in table.rows]


def two(tmp_path):
    paths = [
        make_run(tmp_path / "a", slow=2.0),
        make_run(tmp_path / "b"),
        make_run(tmp_path / "c", code=2, reason="wrong", lines=[]),
    ]
    return [read_run(path) for path in paths], ["slow", "fast", "failed"]


def test_every_run_has_a_row_and_sorts_by_numbers(tmp_path):
    runs, names = two(tmp_path)
    table = runs_table(runs, names, relative(runs, "first"))
    assert [row[1].text for row in table.rows] == names
    assert [cell.text for cell in column(table, "time, \N{MULTIPLICATION SIGN} #0")] == [
        "1.00\N{MULTIPLICATION SIGN}",
        "0.50\N{MULTIPLICATION SIGN}",
        "\N{EN DASH}",
    ]
    assert [cell.sort for cell in column(table, "time, \N{MULTIPLICATION SIGN} #0")] == [
        1.0,
        0.5,
        None,
    ]
    assert [cell.mark for cell in column(table, "status")] == ["finished", "finished", "failed"]


def test_each_slow_record_has_a_row(tmp_path):
    record = {"name": "a/huge.jpg", "mean_s": 0.5, "num_reads": 2, "size_bytes": 2**20, "rank": 1}
    block = {"records": [record, {**record, "rank": 0}, {"name": "damaged"}, 7]}
    lines = lines_of()
    lines[-2]["slow_records"] = block
    make_run(tmp_path / "a", lines=lines)
    make_run(tmp_path / "b")
    table = slow_table([read_run(tmp_path / name) for name in "ab"], ["a", "b"])
    assert [cell.text for cell in table.rows[0]] == [
        *("0", "a", "a/huge.jpg", "500 ms", "2", "1 MiB", "1"),
    ]
    assert len(table.rows) == 2


def test_ranks_have_a_table_of_the_slowest(tmp_path):
    runs, names = two(tmp_path)
    span = RankSpan(0.001, 0.002, 0.033, 1)
    runs[1] = replace(runs[1], ranks=RankReport(2, {"forward": span}))
    table = ranks_table(runs, names)
    assert [cell.text for cell in column(table, "ranks")] == ["\N{EN DASH}", "2", "\N{EN DASH}"]
    cell = column(table, "forward")[1]
    assert (cell.text, cell.details) == ("33 ms", ("rank 1", "1 ms | 2 ms"))
    assert ranks_table(runs[:1], names[:1]).rows == []
