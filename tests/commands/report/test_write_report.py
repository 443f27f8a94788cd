from html.parser import HTMLParser
from pathlib import Path

import pytest

from framework.commands.report.write_report import find, write_report
from framework.errors import ConfigError, DataError
from tests.commands.report.runs import cell, drawn, make_bench, make_run, make_sweep


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


def test_a_sweep_has_all_charts(tmp_path):
    wanted = {
        "times",
        "spans",
        "loss-over-steps",
        "loss-over-seconds",
        "accuracy-over-steps",
        "accuracy-over-seconds",
    }
    assert set(drawn(make_sweep(tmp_path))) == wanted


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data


LINE = {"step": 1, "split": "train", "loss": 1.0, "lr": 1, "wait_s": 0.1}
HOSTILE = "</svg><script>alert(1)</script>"


@pytest.mark.parametrize(
    "word",
    [HOSTILE, "$\\frac{\x1b[31m漢字🙂", "_nolegend_"],
)
def test_whatever_a_run_is_called_it_is_only_text(tmp_path, word):
    paths = [make_run(tmp_path / str(n), (f"data={word}{n}",), lines=[LINE]) for n in range(2)]
    page = Tags()
    page.feed("".join(chart.svg for chart in drawn(paths, png=True).values()))
    assert not page.tags & {"script", "foreignobject", "a", "image", "style"}
    assert "alert(1)" in page.text or word != HOSTILE


def test_runs_are_found_below_dates_and_each_once(tmp_path):
    make_run(tmp_path / "outputs" / "2026-11-20" / "a")
    make_run(tmp_path / "outputs" / "2026-11-21" / "b")
    runs = find(
        [
            str(tmp_path / "outputs" / "2026-11-21" / "b"),
            str(tmp_path / "outputs"),
            str(tmp_path / "outputs"),
        ]
    )
    assert [run.name for run in runs] == ["b", "a"]


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
    ("name", "number"),
    [("absent", 175), ("a" * 300, 175), ("empty", 176), ("file.txt", 177), ("bench.jsonl", 176)],
)
def test_what_cannot_be_reported_is_said(tmp_path, name, number):
    Path("empty").mkdir()
    Path("file.txt").write_text("x")
    make_bench(Path("bench.jsonl"), [])
    with pytest.raises(DataError) as raised:
        find([name])
    assert raised.value.args[0] == number
