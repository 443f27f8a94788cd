"""Learning rates that follow from the step alone, against their formulas and their shapes."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.schedule.constant import Constant
from framework.schedule.cosine import Cosine
from framework.schedule.one_cycle import OneCycle

HALF_COSINE = [(1 + math.cos(math.pi * step / 4)) / 2 for step in range(5)]
UP_AND_DOWN = [0.2, 0.4, 0.6, 0.8, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0]


@pytest.mark.parametrize(
    ("schedule", "total_steps", "factors"),
    [
        pytest.param(Constant(), 10, [1.0] * 10, id="constant"),
        pytest.param(Constant(4), 10, [0.25, 0.5, 0.75, 1.0, 1.0], id="constant after a warm-up"),
        pytest.param(Cosine(0, 0.0), 4, HALF_COSINE, id="half a cosine"),
        pytest.param(Cosine(4, 0.0), 100, [0.25, 0.5, 0.75, 1.0, 1.0], id="cosine after a warm-up"),
        pytest.param(Cosine(10, 0.0), 3, [0.1, 0.2, 0.3], id="shorter than its warm-up"),
        pytest.param(OneCycle(0.4, 0.2), 10, UP_AND_DOWN, id="straight up and down"),
        pytest.param(OneCycle(1.0, 0.0), 4, [0.0, 0.25, 0.5, 0.75, 0.0], id="a peak at the end"),
    ],
)
def test_factors_of_the_first_steps(schedule, total_steps, factors):
    given_factors = [schedule(step, total_steps) for step in range(len(factors))]
    assert given_factors == pytest.approx(factors)


def test_a_curve_ends_at_its_final_factor():
    assert Cosine(warmup_steps=3, final=0.1)(100, 100) == pytest.approx(0.1)
    # the published triangle: 0.2 at the start, 1 after 23 %, 0.07 at the end
    schedule = OneCycle(peak=0.23, start=0.2, final=0.07)
    factors = [schedule(step, 100) for step in (0, 23, 50, 100)]
    assert factors == pytest.approx([0.2, 1.0, 0.07 + 0.93 * 50 / 77, 0.07])


@pytest.mark.parametrize("total_steps", [1, 2, 3])
def test_a_run_of_few_steps_has_a_rate(total_steps):
    factors = [OneCycle(peak=0.3, start=0.1)(step, total_steps) for step in range(total_steps)]
    assert all(0.0 < factor <= 1.0 for factor in factors)


@given(st.integers(0, 20), st.floats(0, 1), st.integers(1, 60))
def test_after_the_warm_up_a_cosine_never_rises(warmup_steps, final, total_steps):
    schedule = Cosine(warmup_steps, final)
    factors = [schedule(step, total_steps) for step in range(warmup_steps, total_steps + 2)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(factors))


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 100))
def test_one_cycle_has_one_summit(peak, start, total_steps):
    schedule = OneCycle(peak, start)
    factors = [schedule(step, total_steps) for step in range(total_steps)]
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
