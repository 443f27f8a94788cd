from pathlib import Path

import pytest

from framework.commands.report.write_report import write_report
from framework.errors import ConfigError, PacelineError
from tests.commands.report.runs import cell, make_bench, make_run


def test_a_page_is_written_with_its_pictures_beside_it(tmp_path):
    for number in range(2):
        make_run(tmp_path / "sweep" / str(number), (f"seed={number}",))
    written = write_report(["sweep"], Path("sweep/report.html"))
    assert written.num_runs == 2
    assert len(written.pictures) == 6
    assert {path.name for path in Path("sweep").iterdir()} == {
        "0",
        "1",
        "report.html",
        *(path.name for path in written.pictures),
    }
    assert "<h1>Sweep sweep</h1>" in written.page.read_text()


def test_a_second_report_takes_the_place_of_the_first(tmp_path):
    make_run(tmp_path / "a")
    first = write_report(["a"], Path("a/report.html"), png=False).page.read_text()
    assert "<h1>Run a</h1>" in first
    assert write_report(["a"], Path("a/report.html"), png=False).num_runs == 1


def test_a_bench_is_reported_like_a_sweep(tmp_path):
    cells = [
        cell(100.0 * rate, repeat, data=name)
        for repeat in range(2)
        for name, rate in (("hdf5", 1), ("lmdb", 2))
    ]
    make_bench(
        tmp_path / "b.jsonl",
        [*cells, {"cell": {"data": "dali"}, "illegal": "DALI is not installed"}],
    )
    text = write_report(["b.jsonl"], Path("b.html"), png=False).page.read_text()
    assert "<h1>Bench b.jsonl</h1>" in text
    assert "0.50\N{MULTIPLICATION SIGN}" in text
    assert "DALI is not installed" in text
    assert "impossible" in text


@pytest.mark.parametrize(
    ("relative", "words"),
    [("first", "as a multiple of slow"), ("slowest", "as a multiple of slow"), ("", "")],
)
def test_whose_time_is_one_is_said(tmp_path, relative, words):
    make_bench(tmp_path / "b.jsonl", [cell(1.0, data="slow"), cell(2.0, data="fast")])
    if not relative:
        with pytest.raises(ConfigError, match="C175"):
            write_report(["b.jsonl"], Path("b.html"), relative)
    else:
        assert (
            words in write_report(["b.jsonl"], Path("b.html"), relative, png=False).page.read_text()
        )


@pytest.mark.parametrize("output", ["report", "report.png", "."])
def test_a_page_has_a_page_s_name(tmp_path, output):
    make_run(tmp_path / "a")
    with pytest.raises(ConfigError, match="C176"):
        write_report(["a"], Path(output))


def test_where_nothing_can_be_written_it_is_said(tmp_path):
    make_run(tmp_path / "a")
    Path("file").touch()
    with pytest.raises(PacelineError, match="cannot write"):
        write_report(["a"], Path("file/report.html"))
    assert not list(tmp_path.glob("*.png"))
