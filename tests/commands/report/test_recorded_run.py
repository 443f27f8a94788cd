import pytest

from framework.commands.report.recorded_run import RecordedRun, RecordedSpan, stacked


def test_shares_are_of_the_sum_of_the_spans():
    run = RecordedRun("a", "a", spans={"wait": RecordedSpan(0.001), "forward": RecordedSpan(0.003)})
    assert run.step_s == pytest.approx(0.004)
    assert run.wait_share == pytest.approx(0.25)


def test_of_a_device_idle_stands_where_wait_would():
    spans, beside = stacked(
        {"wait": RecordedSpan(0.5), "copy": RecordedSpan(0.1), "idle": RecordedSpan(0.3)}
    )
    assert list(spans) == ["idle", "copy"]
    assert beside == {"wait": RecordedSpan(0.5)}
    assert RecordedRun("a", "a", spans=spans, beside=beside).wait_share == pytest.approx(0.75)
