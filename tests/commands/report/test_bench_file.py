import pytest

from framework.commands.report.bench_file import is_bench, read_bench
from tests.commands.report.runs import MACHINE, SPANS_S, cell, make_bench


def test_repeats_of_a_cell_are_one_run_with_their_median(tmp_path):
    lines = [cell(rate, repeat, data="hdf5") for repeat, rate in enumerate((100.0, 90.0, 130.0))]
    (run,) = read_bench(make_bench(tmp_path / "b.jsonl", lines))
    assert (run.records_per_s, run.status, run.choices) == (100.0, "finished", {"data": "hdf5"})
    assert run.spans["wait"].mean_s == pytest.approx(SPANS_S["wait"])
    assert len(run.rates) == 24  # windows, as there are too few repeats for quartiles
    assert run.facts["machine.processor"] == MACHINE["processor"]


def test_cells_that_cannot_be_or_failed_say_why(tmp_path):
    lines = [
        cell(100.0, data="a"),
        {"cell": {"data": "b"}, "illegal": "no CUDA"},
        {"cell": {"data": "c"}, "repeat": 0},
    ]
    runs = read_bench(make_bench(tmp_path / "b.jsonl", lines))
    assert [(run.status, run.reason) for run in runs] == [
        ("finished", ""),
        ("impossible", "no CUDA"),
        ("failed", "no rate is recorded"),
    ]


def test_a_file_that_was_cut_off_keeps_what_is_whole(tmp_path):
    path = make_bench(tmp_path / "b.jsonl", [cell(100.0, data="a")])
    with open(path, "a") as file:
        file.write('{"cell": {"data": "b"}, "rep')
    (run,) = read_bench(path)
    assert any("1 lines" in note for note in run.notes)


@pytest.mark.parametrize("text", ["", "not json", '{"step": 1, "split": "train"}', "[1]", "3"])
def test_what_does_not_begin_as_a_bench_is_none(tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text + "\n")
    assert not is_bench(tmp_path / "x.jsonl")
    assert is_bench(make_bench(tmp_path / "b.jsonl", []))
