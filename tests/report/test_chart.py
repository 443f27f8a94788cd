import re
from html.parser import HTMLParser

import cv2
import numpy as np
import pytest

from framework.report.chart import charts, fitted, metric_names
from framework.report.compare import labels, relative
from framework.report.rundir import read_run
from tests.report.runs import lines_of, make_run


def drawn(paths, png=False):
    runs = [read_run(path) for path in paths]
    return {chart.name: chart for chart in charts(runs, labels(runs), relative(runs, "first"), png)}


def sweep(tmp_path, count=3, **options):
    return [make_run(tmp_path / str(n), (f"seed={n}",), slow=1 + n, **options) for n in range(count)]


def test_a_sweep_has_all_charts(tmp_path):
    wanted = {"times", "spans", "loss-over-steps", "loss-over-seconds", "accuracy-over-steps", "accuracy-over-seconds"}
    assert set(drawn(sweep(tmp_path))) == wanted


def test_one_run_has_no_relative_times(tmp_path):
    assert "times" not in drawn(sweep(tmp_path, 1))


def test_every_run_is_named_and_every_axis_has_a_unit(tmp_path):
    found = drawn(sweep(tmp_path))
    for chart in found.values():
        assert all(f"seed={number}" in chart.svg for number in range(3))
    assert "ms per step" in found["spans"].svg
    assert "as a multiple of seed=0" in found["times"].svg
    assert "optimizer steps" in found["loss-over-steps"].svg
    assert "training time, s" in found["loss-over-seconds"].svg or "training time, ms" in found["loss-over-seconds"].svg
    assert "loss, mean per record" in found["loss-over-steps"].svg


def test_a_piece_of_a_bar_says_what_it_is(tmp_path):
    found = drawn(sweep(tmp_path))
    assert "<title>seed=1: forward 5 ms, 30.9 %</title>" in found["spans"].svg
    assert "<title>seed=1: 2.000 of the time, 0.500 of the speed</title>" in found["times"].svg


def test_the_same_runs_make_the_same_charts(tmp_path):
    paths = sweep(tmp_path)
    assert drawn(paths, png=True) == drawn(paths, png=True)


def test_pictures_are_pictures(tmp_path):
    for chart in drawn(sweep(tmp_path), png=True).values():
        pixels = cv2.imdecode(np.frombuffer(chart.png, np.uint8), cv2.IMREAD_COLOR)
        assert pixels.shape[1] == int(420 / 72 * 200)
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_ids_are_not_shared_between_charts(tmp_path):
    ids = [
        name
        for chart in drawn(sweep(tmp_path)).values()
        for name in set(re.findall(r'<(?:path|clipPath|svg)[^>]* id="([^"]+)"', chart.svg))
    ]
    assert len(ids) == len(set(ids))


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data


HOSTILE = "</svg><script>alert(1)</script>"


@pytest.mark.parametrize("word", [HOSTILE, "$\\frac{", "{x}%s", "\x1b[31m", "漢字🙂", "_nolegend_", "a" * 5000, "fill: #0072b2"])
def test_whatever_a_run_is_called_it_is_only_text(tmp_path, word):
    paths = [make_run(tmp_path / str(n), (f"data={word}{n}",)) for n in range(2)]
    page = Tags()
    page.feed("".join(chart.svg for chart in drawn(paths, png=True).values()))
    assert not page.tags & {"script", "foreignobject", "a", "image", "style"}
    assert "alert(1)" in page.text or word != HOSTILE


def test_a_metric_may_have_any_name(tmp_path):
    lines = [{"step": s, "split": "train", "loss": 1.0, "../$<b>": 2.0 + s, "lr": 1, "wait_s": 1.0} for s in (1, 2)]
    found = drawn([make_run(tmp_path / "a", lines=lines)], png=True)
    assert "_____b_-over-steps" in found
    assert "<b>" not in found["_____b_-over-steps"].svg


def test_losses_that_are_not_finite_are_counted_not_drawn(tmp_path):
    lines = [*lines_of(), {"step": 44, "split": "train", "loss": float("nan"), "lr": 1, "wait_s": 0.1}]
    assert "1 values are not finite" in drawn([make_run(tmp_path / "a", lines=lines)])["loss-over-steps"].caption
    only = [{"step": 44, "split": "train", "loss": float("inf"), "lr": 1, "wait_s": 0.1}]
    assert "loss-over-steps" not in drawn([make_run(tmp_path / "b", lines=only)])


def test_long_curves_say_how_they_are_thinned(tmp_path):
    lines = [{"step": s, "split": "train", "loss": 1 / s, "lr": 1, "wait_s": 0.1} for s in range(1, 5001)]
    chart = drawn([make_run(tmp_path / "a", lines=lines)])["loss-over-steps"]
    assert "more than 600 points and are drawn in 240 columns" in chart.caption
    assert len(chart.svg) < 60_000


def test_runs_that_failed_are_in_the_bars_as_such(tmp_path):
    paths = [*sweep(tmp_path), make_run(tmp_path / "bad", ("seed=9",), code=2, lines=[])]
    found = drawn(paths)
    assert ">failed</text>" in found["spans"].svg
    assert ">failed</text>" in found["times"].svg


def test_runs_that_learned_the_same_share_a_striped_line(tmp_path):
    found = drawn(sweep(tmp_path))
    assert "stroke-dasharray: 6,12; stroke-dashoffset: 6" in found["loss-over-steps"].svg
    assert "striped in several colors" in found["loss-over-steps"].caption
    assert "striped" not in found["loss-over-seconds"].caption


def test_fifty_runs_are_drawn(tmp_path):
    found = drawn([make_run(tmp_path / str(n), (f"data={'abcde'[n % 5]}", f"seed={n}")) for n in range(50)])
    assert "data=e" in found["loss-over-steps"].svg
    assert sum(len(chart.svg) for chart in found.values()) < 3_000_000


def test_a_run_without_anything_draws_nothing(tmp_path):
    assert drawn([make_run(tmp_path / "a", code=None, lines=[])]) == {}


def test_loss_is_the_first_metric(tmp_path):
    lines = [{"step": 1, "split": "val", "psnr": 1.0, "loss": 1.0, "lr": 1}]
    assert metric_names([read_run(make_run(tmp_path / "a", lines=lines))]) == ["loss", "psnr"]


def test_long_names_lose_their_middle():
    assert fitted("abcdefghij", 10) == "abcdefghij"
    assert fitted("abcdefghijk", 10) == "abcdef…ijk"
