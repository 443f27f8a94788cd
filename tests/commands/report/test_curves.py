import pytest

from framework.commands.report.read_run import read_run
from tests.commands.report.runs import drawn, lines_of, make_run


def test_losses_that_are_not_finite_are_counted_not_drawn(tmp_path):
    lines = [
        *lines_of(),
        {"step": 44, "split": "train", "loss": float("nan"), "lr": 1, "wait_s": 0.1},
    ]
    assert (
        "1 values are not finite"
        in drawn([make_run(tmp_path / "a", lines=lines)])["loss-over-steps"].caption
    )
    only = [{"step": 44, "split": "train", "loss": float("inf"), "lr": 1, "wait_s": 0.1}]
    assert "loss-over-steps" not in drawn([make_run(tmp_path / "b", lines=only)])


def test_a_metric_may_have_any_name(tmp_path):
    lines = [
        {"step": s, "split": "train", "loss": 1.0, "../$<b>": 2.0 + s, "lr": 1, "wait_s": 1.0}
        for s in (1, 2)
    ]
    charts = drawn([make_run(tmp_path / "a", lines=lines)], png=True)
    assert "_____b_1-over-steps" in charts
    assert "<b>" not in charts["_____b_1-over-steps"].svg


@pytest.mark.parametrize("value", [-1e308, 0.0])
def test_any_value_can_be_looked_at(tmp_path, value):
    lines = [
        {"step": s, "split": "train", "loss": v, "lr": 1, "wait_s": 0.1}
        for s, v in enumerate((value, 1.0, 2.0), 1)
    ]
    assert "loss-over-steps" in drawn([make_run(tmp_path / "a", lines=lines)], png=True)


def test_each_validation_set_has_a_line_of_its_own(tmp_path):
    lines = [
        {"step": step, "split": split, "loss": 1.0 / step + len(split), "lr": 1, "wait_s": 0.1}
        for step in (1, 2, 3)
        for split in ("train", "val.clean", "val.noisy")
    ]
    folder = make_run(tmp_path / "a", lines=lines, code=None)
    chart = drawn([folder])["loss-over-steps"]
    assert "validation, clean" in chart.svg
    assert "validation, noisy" in chart.svg
    assert read_run(folder).val == {"clean.loss": 1 / 3 + 9, "noisy.loss": 1 / 3 + 9}


def test_a_tuned_run_shows_its_workers_and_its_waiting(tmp_path):
    lines = [
        {**line, "tuning": {"num_workers": 2 + line["step"] // 20}}
        for line in lines_of()
        if line["split"] == "train"
    ]
    charts = drawn([make_run(tmp_path / "a", lines=lines)])
    titles = [chart.title for chart in charts.values()]
    assert "workers (auto) over steps" in titles
    assert "waiting (auto) over seconds" in titles
    assert not [name for name in drawn([make_run(tmp_path / "b")]) if "auto" in name]
