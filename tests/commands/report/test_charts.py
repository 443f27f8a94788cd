import cv2
import numpy as np
import pytest

from framework.cli.pages import COLORS
from framework.commands.report.charts import PNG_DPI, inlined, num_columns, thinned
from framework.commands.report.recorded_runs import read_run
from framework.system.run_dir import read_json
from tests.commands.report.runs import Seen, drawn, line_of, lines_of, make_run, make_sweep
from tests.saved_runs import change

FILE = """<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "x" "http://www.w3.org/x.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt" viewBox="0 0 420 300" xmlns="http://www.w3.org/2000/svg">
<metadata><a href="http://x"/></metadata>
<defs>
  <style type="text/css">*{stroke: red}</style>
 </defs>
<g id="bar-1"><path d="M 1.23456 7" style="fill: #0072b2"/></g>
<use xlink:href="#m1"/><text>fill: #0072b2 1.23456 &lt;script&gt;</text></svg>"""


def test_a_sweep_has_all_charts_and_runs_that_failed_are_in_the_bars(tmp_path):
    paths = [*make_sweep(tmp_path), make_run(tmp_path / "bad", ("seed=9",), code=2, lines=[])]
    charts = drawn(paths, png=True)
    curves = {f"{name}-over-{x}" for name in ("loss", "accuracy") for x in ("steps", "seconds")}
    assert set(charts) == {"times", "spans"} | curves
    assert ">failed</text>" in charts["spans"].svg
    assert ">failed</text>" in charts["times"].svg
    for chart in charts.values():
        pixels = cv2.imdecode(np.frombuffer(chart.png, np.uint8), cv2.IMREAD_COLOR)
        assert pixels.shape[1] == int(420 / 72 * PNG_DPI)
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_a_device_that_idles_is_drawn_in_the_place_of_wait(tmp_path):
    path = make_run(tmp_path / "a")
    spans = read_json(path / "summary.json")["spans"]
    change(path / "summary.json", spans={**spans, "idle": spans["wait"]})
    chart = drawn([path])["spans"]
    assert ">idle</text>" in chart.svg
    assert ">wait</text>" not in chart.svg
    assert "a device had nothing to do" in chart.caption


def test_colors_follow_the_page_and_text_stays_as_it_is():
    text = inlined(FILE, "spans", "a title", {})
    assert 'style="fill: var(--blue)"' in text
    assert f"<text>fill: {COLORS['blue'][0]} 1.23456 &lt;script&gt;</text>" in text


def test_losses_that_are_not_finite_are_counted_not_drawn(tmp_path):
    lines = [*lines_of(), line_of(44, loss=float("nan"))]
    chart = drawn([make_run(tmp_path / "a", lines=lines)])["loss-over-steps"]
    assert "1 values are not finite" in chart.caption
    only = [line_of(44, loss=float("inf"))]
    assert "loss-over-steps" not in drawn([make_run(tmp_path / "b", lines=only)])


def test_a_metric_may_have_any_name(tmp_path):
    lines = [line_of(step, **{"../$<b>": 2.0 + step}) for step in (1, 2)]
    charts = drawn([make_run(tmp_path / "a", lines=lines)], png=True)
    assert "<b>" not in charts["_____b_1-over-steps"].svg


@pytest.mark.parametrize("value", [-1e308, 0.0])
def test_any_value_can_be_looked_at(tmp_path, value):
    lines = [line_of(step, loss=loss) for step, loss in enumerate((value, 1.0, 2.0), 1)]
    assert "loss-over-steps" in drawn([make_run(tmp_path / "a", lines=lines)], png=True)


def test_each_validation_set_has_a_line_of_its_own(tmp_path):
    splits = ("train", "val.clean", "val.noisy")
    lines = [line_of(step, split, 1.0 / step + len(split)) for step in (1, 2) for split in splits]
    folder = make_run(tmp_path / "a", lines=lines, code=None)
    chart = drawn([folder])["loss-over-steps"]
    assert "validation, clean" in chart.svg
    assert "validation, noisy" in chart.svg
    assert read_run(folder).val == {"clean.loss": 9.5, "noisy.loss": 9.5}


def test_of_many_points_none_lies_outside_of_what_is_drawn():
    x, y = np.arange(100_000.0), np.random.default_rng(0).normal(size=100_000)
    y[54_321] = 99.0  # a single peak
    line = thinned(x, y, 600)
    assert len(line.x) == num_columns(600) == 240
    assert line.high.max() == 99.0
    column = np.minimum((x / (x[-1] / 240)).astype(int), 239)
    assert np.all(y <= line.high[column])
    assert np.all(y >= line.low[column])
    assert np.all((line.low <= line.y) & (line.y <= line.high))


HOSTILE = "</svg><script>alert(1)</script>"


@pytest.mark.parametrize("word", [HOSTILE, "$\\frac{\x1b[31m漢字🙂", "_nolegend_"])
def test_whatever_a_run_is_called_it_is_only_text(tmp_path, word):
    lines = [line_of(1)]
    paths = [make_run(tmp_path / str(n), (f"data={word}{n}",), lines=lines) for n in range(2)]
    page = Seen("".join(chart.svg for chart in drawn(paths, png=True).values()))
    foreign = {"script", "foreignobject", "a", "image", "style"}
    assert not foreign & {tag for tag, _ in page.found}
    assert "alert(1)" in page.text or word != HOSTILE
