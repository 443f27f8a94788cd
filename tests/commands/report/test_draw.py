import re
from html.parser import HTMLParser

import pytest

from tests.commands.report.runs import drawn, make_run, make_sweep


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


def test_every_run_is_named_and_every_axis_has_a_unit(tmp_path):
    found = drawn(make_sweep(tmp_path))
    for chart in found.values():
        assert all(f"seed={number}" in chart.svg for number in range(3))
    assert "ms per step" in found["spans"].svg
    assert "as a multiple of seed=0" in found["times"].svg
    assert "optimizer steps" in found["loss-over-steps"].svg
    assert (
        "training time, s" in found["loss-over-seconds"].svg
        or "training time, ms" in found["loss-over-seconds"].svg
    )
    assert "loss, mean per record" in found["loss-over-steps"].svg


def test_the_same_runs_make_the_same_charts(tmp_path):
    paths = make_sweep(tmp_path)
    assert drawn(paths) == drawn(paths)


def test_ids_are_not_shared_between_charts(tmp_path):
    ids = [
        name
        for chart in drawn(make_sweep(tmp_path)).values()
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


LINE = {"step": 1, "split": "train", "loss": 1.0, "lr": 1, "wait_s": 0.1}
HOSTILE = "</svg><script>alert(1)</script>"


@pytest.mark.parametrize(
    "word",
    [HOSTILE, "$\\frac{", "{x}%s", "\x1b[31m", "漢字🙂", "_nolegend_", "a" * 5000, "fill: #0072b2"],
)
def test_whatever_a_run_is_called_it_is_only_text(tmp_path, word):
    paths = [make_run(tmp_path / str(n), (f"data={word}{n}",), lines=[LINE]) for n in range(2)]
    page = Tags()
    page.feed("".join(chart.svg for chart in drawn(paths, png=True).values()))
    assert not page.tags & {"script", "foreignobject", "a", "image", "style"}
    assert "alert(1)" in page.text or word != HOSTILE


def test_fifty_runs_are_drawn(tmp_path):
    found = drawn(
        [make_run(tmp_path / str(n), (f"data={'abcde'[n % 5]}", f"seed={n}")) for n in range(50)]
    )
    assert "data=e" in found["loss-over-steps"].svg
    assert sum(len(chart.svg) for chart in found.values()) < 3_000_000


def test_a_run_without_anything_draws_nothing(tmp_path):
    assert drawn([make_run(tmp_path / "a", code=None, lines=[])]) == {}
