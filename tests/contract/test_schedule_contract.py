import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.schedule import constant, cosine, one_cycle, plateau

KINDS = {
    "constant": constant.Constant(),
    "constant, warmed up": constant.Constant(warmup_steps=7),
    "plateau": plateau.Plateau("loss", "min", 0.5, 3, 0.0),
    "plateau, warmed up": plateau.Plateau("loss", "min", 0.5, 3, 0.0, warmup_steps=7),
    "cosine": cosine.Cosine(warmup_steps=0, final=0.0),
    "cosine, warmed up": cosine.Cosine(warmup_steps=7, final=0.1),
    "one cycle": one_cycle.OneCycle(peak=0.3, start=0.1),
    "one cycle, late": one_cycle.OneCycle(peak=1.0, start=0.0),
    "one cycle, not to the end": one_cycle.OneCycle(peak=0.23, start=0.2, final=0.07),
}
every = pytest.mark.parametrize("schedule", KINDS.values(), ids=KINDS)


@every
def test_it_is_pure(schedule):
    forwards = [schedule(step, 30) for step in range(30)]
    backwards = [schedule(step, 30) for step in reversed(range(30))]
    before = pickle.dumps(schedule)
    assert forwards == backwards[::-1]
    assert pickle.dumps(schedule) == before


@every
@given(total_steps=st.integers(1, 10_000), share=st.floats(0, 1))
def test_it_is_a_factor_between_none_and_the_optimizer_s_own_rate(schedule, total_steps, share):
    for step in (int(share * (total_steps - 1)), total_steps + 1):  # beyond the last, too
        factor = schedule(step, total_steps)
        assert isinstance(factor, float)
        assert 0.0 <= factor <= 1.0  # so it is finite


@every
@pytest.mark.parametrize("total_steps", [20, 1000])
def test_it_comes_to_the_optimizer_s_own_rate_or_near_it(schedule, total_steps):
    assert max(schedule(step, total_steps) for step in range(total_steps)) >= 0.9
