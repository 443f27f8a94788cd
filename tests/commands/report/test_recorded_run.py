import pytest

from framework.commands.report.recorded_run import RecordedRun, RecordedSpan, stacked


def test_shares_are_of_the_sum_of_the_spans():
    run = RecordedRun("a", "a", spans={"wait": RecordedSpan(0.001), "forward": RecordedSpan(0.003)})
    assert run.step_s == pytest.approx(0.004)
    assert run.wait_share == pytest.approx(0.25)


def test_a_run_without_spans_has_no_shares():
    run = RecordedRun("a", "a")
    assert (run.step_s, run.wait_share, run.quartiles, run.spread) == (None, None, None, "")


def test_the_spread_is_half_the_distance_of_the_quartiles():
    assert RecordedRun("a", "a", rates=(90, 95, 100, 105, 110)).spread == "± 5.0 %"
    assert RecordedRun("a", "a", rates=(90, 110)).spread == ""


def test_spans_come_in_the_order_of_a_step():
    spans, beside = stacked(
        {"new": RecordedSpan(1), "report": RecordedSpan(1), "wait": RecordedSpan(1)}
    )
    assert (list(spans), beside) == (["wait", "report", "new"], {})


def test_of_a_device_idle_stands_where_wait_would():
    spans, beside = stacked(
        {"wait": RecordedSpan(0.5), "copy": RecordedSpan(0.1), "idle": RecordedSpan(0.3)}
    )
    assert list(spans) == ["idle", "copy"]
    assert beside == {"wait": RecordedSpan(0.5)}
    assert RecordedRun("a", "a", spans=spans, beside=beside).wait_share == pytest.approx(0.75)
