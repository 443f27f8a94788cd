import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import framework.contracts.span
from framework.contracts import span as module
from tests.fakes import span

seconds = st.floats(1e-9, 1e5)
steps = st.lists(seconds, min_size=1, max_size=200)
shares_of_steps = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0]) | st.floats(0, 1)


def nearest_rank(values, share):
    """Return the quantile, exactly."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def counted(*values):
    """Return a span that keeps no step exactly: all are counted in buckets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framework.contracts.span, "MOST_RECENT", 0)
        return module.Span.summed([module.Span(), span(*values)])


@given(steps, steps, shares_of_steps)
def test_a_quantile_is_exact_for_the_newest_steps_and_within_half_a_percent(some, others, share):
    assert span(*some).quantile_s(share) == nearest_rank(some, share)
    assert counted(*some).recent == ()
    both = module.Span.summed([counted(*some), span(*others)])
    for result, values in ((counted(*some), some), (both, [*some, *others])):
        assert result.quantile_s(share) == pytest.approx(nearest_rank(values, share), rel=0.00505)


@given(steps, steps)
def test_totals_means_and_numbers_of_steps_are_exact_and_add_up(some, others):
    for result in (span(*some), counted(*some)):
        assert (result.total_s, result.num_steps) == (sum(some), len(some))
        assert result.mean_s == sum(some) / len(some)
    added = module.Span.summed([counted(*some), counted(*others)])
    whole = counted(*some, *others)
    assert (added.counts, added.num_steps) == (whole.counts, whole.num_steps)
    assert added.total_s == pytest.approx(whole.total_s)


@given(st.lists(st.dictionaries(st.sampled_from(["wait", "copy"]), seconds), max_size=100))
def test_laps_come_to_what_all_their_steps_are_at_any_time(laps):
    whole = module.SpanSum()
    for number, lap in enumerate(laps, 1):
        whole.add({name: span(value) for name, value in lap.items()})
        if number % 7 == 0:
            assert whole.whole.keys() == {name for lap in laps[:number] for name in lap}
    for name in ("wait", "copy"):
        values = [lap[name] for lap in laps if name in lap]
        result = whole.whole.get(name, module.Span())
        assert result.num_steps == len(values)
        assert result.total_s == pytest.approx(sum(values))


def test_a_month_of_steps_takes_kilobytes():
    result = module.Span()
    for start in range(0, 200_000, 1000):  # from a microsecond to eight minutes
        more = span(*[1e-6 * 1.0001**number for number in range(start, start + 1000)])
        result = module.Span.summed([result, more])
    assert result.num_steps == 200_000
    assert len(result.recent) <= module.MOST_RECENT
    assert sys.getsizeof(result.counts) < 200_000


def test_merging_keeps_the_order_of_a_step_and_every_name():
    result = module.merged(
        {"report": span(1.0), "mine": span(2.0)},
        {"wait": span(3.0), "report": span(4.0), module.IDLE: span(5.0)},
    )
    assert list(result) == ["wait", "report", module.IDLE, "mine"]
    assert result["report"] == span(1.0, 4.0)
    assert module.merged({}, {}) == {}


def test_shares_are_of_the_whole_step_and_add_up():
    result = module.shares(
        {name: span(float(number)) for number, name in enumerate(module.SPANS, 1)}
    )
    assert result["wait"] == pytest.approx(1 / 21)
    assert sum(result.values()) == pytest.approx(1.0)
    assert module.shares({}) == {}
    assert module.shares({"wait": module.Span()}) == {"wait": 0.0}


def test_beside_a_device_only_its_idle_time_is_part_of_the_step():
    spans = {"wait": span(9.0), "forward": span(6.0), "backward": span(3.0), module.IDLE: span(1.0)}
    assert module.step_s(spans) == 10.0
    assert module.shares(spans) == {"wait": 0.9, "forward": 0.6, "backward": 0.3, module.IDLE: 0.1}


@pytest.mark.parametrize(
    ("spans_s", "share"),
    [
        ({"wait": 1.0, "forward": 3.0}, 0.25),
        ({"wait": 2.0, "idle": 1.0, "forward": 3.0}, 0.25),
        *(({}, None), ({"forward": 1.0}, None), ({"wait": 0.0}, None)),
    ],
    ids=["host", "device", "nothing", "no wait", "no time"],
)
def test_waiting_is_a_share_of_the_step(spans_s, share):
    assert module.waiting_share(spans_s) == share
