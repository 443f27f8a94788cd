import json

import numpy as np
import pytest

from framework.commands.report.run_metrics import (
    WAITING,
    WORKERS,
    columns_of,
    read_metrics,
    thinned,
)
from tests.commands.report.runs import SPANS_S, lines_of


def written(tmp_path, lines):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )
    return path


def test_curves_have_every_report_with_its_step_and_seconds(tmp_path):
    metrics = read_metrics(written(tmp_path, lines_of()))
    curve = metrics.curves["train", "loss"]
    assert curve.steps.tolist() == list(range(4, 41, 4))
    assert curve.seconds == pytest.approx(curve.steps * sum(SPANS_S.values()))
    assert metrics.curves["val", "accuracy"].steps.tolist() == [20, 40]
    assert set(metrics.curves) == {
        (split, name) for split in ("train", "val") for name in ("loss", "accuracy")
    }


def test_what_is_no_metric_has_no_curve(tmp_path):
    line = {
        "step": 1,
        "epoch": 1,
        "split": "train",
        "loss": 1.0,
        "name": "x",
        "lr": 0.1,
        "wait_p90_s": 0.1,
        "left_s": 9.0,
        "idle_s": 0.1,
    }
    metrics = read_metrics(written(tmp_path, [line]))
    assert set(metrics.curves) == {("train", "loss")}


def test_where_a_device_idles_the_host_s_wait_is_no_time_of_its_own(tmp_path):
    lines = [
        {
            "step": 10,
            "split": "train",
            "loss": 1,
            "lr": 1,
            "wait_s": 5.0,
            "forward_s": 0.2,
            "idle_s": 0.1,
        }
    ]
    assert read_metrics(written(tmp_path, lines)).curves["train", "loss"].seconds == pytest.approx(
        [3.0]
    )


def test_a_line_that_was_cut_off_is_left_out_and_counted(tmp_path):
    text = json.dumps(lines_of()[-1])
    metrics = read_metrics(written(tmp_path, [*lines_of(), text[: len(text) // 2]]))
    assert metrics.num_bad == 1
    assert len(metrics.curves["train", "loss"].steps) == 10


@pytest.mark.parametrize(
    "bad",
    [
        "[1]\n",
        "null\n",
        '{"step": "a", "split": "train"}\n',
        '{"split": "val"}\n',
        "\x00\n",
        "[" * 99_999 + "\n",
    ],
)
def test_lines_that_are_none_are_counted(tmp_path, bad):
    assert read_metrics(written(tmp_path, [bad, *lines_of()])).num_bad == 1


# How curves are thinned


def test_of_many_points_none_lies_outside_of_what_is_drawn():
    x, y = np.arange(100_000.0), np.random.default_rng(0).normal(size=100_000)
    y[54_321] = 99.0  # a single peak
    drawn = thinned(x, y, 600)
    assert len(drawn.x) == columns_of(600) == 240
    assert drawn.high.max() == 99.0
    column = np.minimum((x / (x[-1] / 240)).astype(int), 239)
    assert np.all(y <= drawn.high[column])
    assert np.all(y >= drawn.low[column])
    assert np.all((drawn.low <= drawn.y) & (drawn.y <= drawn.high))


def test_a_tuned_run_has_curves_of_its_workers_and_its_waiting(tmp_path):
    spans_s = {"wait_s": 1.0, "forward_s": 3.0}
    lines = [
        {"step": 10, "split": "train", "loss": 1, "lr": 1, **spans_s, "tuning": tuning}
        for tuning in ({"num_workers": 4}, "damaged")
    ]
    curves = read_metrics(written(tmp_path, lines)).curves
    assert curves["train", WORKERS].values.tolist() == [4.0]
    assert curves["train", WAITING].values.tolist() == [0.25]
