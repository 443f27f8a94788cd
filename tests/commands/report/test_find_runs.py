from pathlib import Path

import pytest

from framework.commands.report.find_runs import find, natural
from framework.errors import DataError
from tests.commands.report.runs import cell, make_bench, make_run


def test_a_sweep_is_its_jobs_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 9, 0):
        make_run(tmp_path / "sweep" / f"{number}-loader=plain")
    assert [run.name[:2] for run in find([str(tmp_path / "sweep")])] == ["0-", "9-", "10"]


def test_runs_are_found_below_dates_and_each_once(tmp_path):
    make_run(tmp_path / "outputs" / "2026-11-20" / "a")
    make_run(tmp_path / "outputs" / "2026-11-21" / "b")
    found = find(
        [
            str(tmp_path / "outputs" / "2026-11-21" / "b"),
            str(tmp_path / "outputs"),
            str(tmp_path / "outputs"),
        ]
    )
    assert [run.name for run in found] == ["b", "a"]


def test_inside_a_run_nothing_is_searched(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "a" / "checkpoints" / "b")
    assert [run.name for run in find([str(tmp_path)])] == ["a"]


def test_bench_files_are_found_beside_runs_and_metrics_are_none(tmp_path):
    make_run(tmp_path / "a")
    make_bench(tmp_path / "bench.jsonl", [cell(100.0, data="x")])
    (tmp_path / "other.jsonl").write_text("{}\n")
    assert [run.kind for run in find([str(tmp_path)])] == ["run", "cell"]


def test_links_are_not_followed(tmp_path):
    make_run(tmp_path / "a")
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-folder" / "loop").symlink_to(tmp_path)
    assert len(find([str(tmp_path)])) == 1


@pytest.mark.parametrize(
    ("name", "number"), [("absent", 175), ("empty", 176), ("file.txt", 177), ("bench.jsonl", 176)]
)
def test_what_cannot_be_reported_is_said(tmp_path, name, number):
    Path("empty").mkdir()
    Path("file.txt").write_text("x")
    make_bench(Path("bench.jsonl"), [])
    with pytest.raises(DataError) as raised:
        find([name])
    assert raised.value.args[0] == number


def test_ten_comes_after_nine():
    assert sorted(["10-a", "9-b", "a", "1", "10-B"], key=natural) == [
        "1",
        "9-b",
        "10-B",
        "10-a",
        "a",
    ]
