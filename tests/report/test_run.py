import pytest

from framework.report.run import Run, Span, stacked


def test_shares_are_of_the_sum_of_the_spans():
    run = Run("a", "a", spans={"wait": Span(0.001), "forward": Span(0.003)})
    assert run.step_s == pytest.approx(0.004)
    assert run.wait_share == pytest.approx(0.25)


def test_a_run_without_spans_has_no_shares():
    run = Run("a", "a")
    assert (run.step_s, run.wait_share, run.quartiles, run.spread) == (None, None, None, None)


def test_the_spread_is_half_the_distance_of_the_quartiles():
    assert Run("a", "a", rates=(90, 95, 100, 105, 110)).spread == pytest.approx(0.075)
    assert Run("a", "a", rates=(90, 110)).spread is None


def test_spans_come_in_the_order_of_a_step():
    spans, beside = stacked({"new": Span(1), "report": Span(1), "wait": Span(1)})
    assert (list(spans), beside) == (["wait", "report", "new"], {})


def test_of_a_device_idle_stands_where_wait_would():
    spans, beside = stacked({"wait": Span(0.5), "copy": Span(0.1), "idle": Span(0.3)})
    assert list(spans) == ["idle", "copy"]
    assert beside == {"wait": Span(0.5)}
    assert Run("a", "a", spans=spans, beside=beside).wait_share == pytest.approx(0.75)
