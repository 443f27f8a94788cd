import json
import re

from framework.commands.report.palette import COLORS
from tests.commands.report.runs import drawn, make_run, make_sweep


def test_one_run_has_no_relative_times(tmp_path):
    assert "times" not in drawn(make_sweep(tmp_path, 1))


def test_a_piece_of_a_bar_says_what_it_is(tmp_path):
    charts = drawn(make_sweep(tmp_path))
    assert "<title>seed=1: forward 5 ms, 30.9 %</title>" in charts["spans"].svg
    assert "<title>seed=1: 2.000 of the time, 0.500 of the speed</title>" in charts["times"].svg


def test_runs_that_failed_are_in_the_bars_as_such(tmp_path):
    paths = [*make_sweep(tmp_path), make_run(tmp_path / "bad", ("seed=9",), code=2, lines=[])]
    charts = drawn(paths)
    assert ">failed</text>" in charts["spans"].svg
    assert ">failed</text>" in charts["times"].svg


def test_a_device_that_idles_is_drawn_in_the_place_of_wait(tmp_path):
    path = make_run(tmp_path / "a")
    summary = json.loads((path / "summary.json").read_text())
    summary["spans"]["idle"] = {"mean_s": 0.5}
    (path / "summary.json").write_text(json.dumps(summary))
    chart = drawn([path])["spans"]
    assert ">idle</text>" in chart.svg
    assert ">wait</text>" not in chart.svg
    assert "a device had nothing to do" in chart.caption


def test_colors_are_the_page_s(tmp_path):
    chart = drawn(make_sweep(tmp_path))["spans"]
    assert "fill: var(--vermillion)" in chart.svg
    assert not [light for light, _ in COLORS.values() if light in chart.svg]


def test_a_run_that_hung_does_not_make_all_bars_short(tmp_path):
    lines = [
        {"step": n, "split": "train", "loss": 1.0, "lr": 1, "records_per_s": r}
        for n, r in enumerate((9000, 8000, 1, 1, 1), 1)
    ]
    charts = drawn([make_run(tmp_path / "a"), make_run(tmp_path / "b", lines=lines)])
    ticks = [float(text) for text in re.findall(r">([0-9.]+)</text>", charts["times"].svg)]
    assert 1 <= max(ticks) < 1.4


def test_times_that_cannot_be_are_not_drawn(tmp_path):
    path = make_run(tmp_path / "a", lines=[])
    spans = {
        "wait": {"mean_s": 1e300},
        "copy": {"mean_s": -5},
        "forward": {"mean_s": float("nan")},
        "backward": {"mean_s": 0.001},
    }
    (path / "summary.json").write_text(
        json.dumps({"spans": spans, "steps": 1, "records_per_s": 1e300})
    )
    chart = drawn([path])["spans"]
    assert "<title>a: backward 1 ms, 100.0 %</title>" in chart.svg
