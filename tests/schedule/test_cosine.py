import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.schedule.cosine import Cosine


def test_it_goes_down_from_the_full_rate_by_half_a_cosine():
    schedule = Cosine(warmup_steps=0, final=0.0)
    assert [schedule(step, 4) for step in range(5)] == pytest.approx(
        [(1 + math.cos(math.pi * step / 4)) / 2 for step in range(5)]
    )


def test_it_ends_at_the_final_factor():
    assert Cosine(warmup_steps=3, final=0.1)(100, 100) == pytest.approx(0.1)


def test_the_warm_up_is_linear_and_ends_at_the_full_rate():
    schedule = Cosine(warmup_steps=4, final=0.0)
    assert [schedule(step, 100) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_run_shorter_than_its_warm_up_is_warm_up_only():
    assert [Cosine(warmup_steps=10, final=0.0)(step, 3) for step in range(3)] == [0.1, 0.2, 0.3]


@given(st.integers(0, 20), st.floats(0, 1), st.integers(1, 60))
def test_after_the_warm_up_it_never_rises(warmup_steps, final, total_steps):
    schedule = Cosine(warmup_steps, final)
    factors = [schedule(step, total_steps) for step in range(warmup_steps, total_steps + 2)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(factors))
