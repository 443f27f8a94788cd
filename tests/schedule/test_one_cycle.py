import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.schedule.one_cycle import OneCycle


def test_it_goes_straight_up_and_straight_down():
    schedule = OneCycle(peak=0.4, start=0.2)
    assert [schedule(step, 10) for step in range(11)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0]
    )


def test_the_first_step_has_the_start_factor_and_the_peak_the_full_rate():
    schedule = OneCycle(peak=0.25, start=0.1)
    assert schedule(0, 100) == pytest.approx(0.1)
    assert schedule(25, 100) == 1.0


def test_a_peak_at_the_end_only_rises():
    schedule = OneCycle(peak=1.0, start=0.0)
    assert [schedule(step, 4) for step in range(5)] == [0.0, 0.25, 0.5, 0.75, 0.0]


@pytest.mark.parametrize("total_steps", [1, 2, 3])
def test_a_run_of_few_steps_still_has_a_rate(total_steps):
    factors = [OneCycle(peak=0.3, start=0.1)(step, total_steps) for step in range(total_steps)]
    assert all(0.0 < factor <= 1.0 for factor in factors)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 100))
def test_it_has_one_summit(peak, start, total_steps):
    schedule = OneCycle(peak, start)
    factors = [schedule(step, total_steps) for step in range(total_steps)]
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


def test_it_ends_at_the_final_factor():
    """The published triangle: 0.2 at the start, 1 after 23 %, 0.07 at the end."""
    schedule = OneCycle(peak=0.23, start=0.2, final=0.07)
    factors = [schedule(step, 100) for step in (0, 23, 50, 100)]
    assert factors == pytest.approx([0.2, 1.0, 0.07 + 0.93 * 50 / 77, 0.07])
