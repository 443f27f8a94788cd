import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.loader.tuner import MOST_AHEAD, Decision, Observation, ReadPlan, Tuner, TunerLimits

HOME = ReadPlan(2, 2, 2)
WINDOW_S = 4.0


class Pipeline:
    """Workers that decode a batch in ``decode_s`` on at most ``cores``; steps of ``step_s``."""

    def __init__(self, decode_s=0.02, step_s=0.02, cores=math.inf, **facts):
        self.decode_s = decode_s
        self.step_s = step_s
        self.cores = cores
        self.facts = facts

    def seen(self, plan):
        useful = min(plan.num_workers, self.cores)
        batch_s = max(self.step_s, self.decode_s / useful)
        facts = {
            "wait_share": 1 - self.step_s / batch_s,
            "busy_workers": self.decode_s / batch_s * plan.num_workers / useful,
            "queue_share": 1.0 if self.step_s == batch_s else 0.0,
            "free_cores": 1.0,
            **self.facts,
        }
        return Observation(WINDOW_S, round(WINDOW_S / batch_s), **facts)


def make(home=HOME, num_cores=2, most=16, budget=1e9, processes=False):
    return Tuner(home, TunerLimits(num_cores, most, budget, processes))


def watched(tuner, pipeline, count):
    """Let a tuner see so many windows. Return its decisions by their window."""
    decisions = [tuner.observe(pipeline.seen(tuner.plan)) for _ in range(count)]
    return {number: decision for number, decision in enumerate(decisions) if decision}


def test_waiting_brings_more_workers():
    decisions = watched(make(), Pipeline(decode_s=0.08), 2)
    assert decisions == {1: Decision(ReadPlan(4, 2, 2), "steps waited 50 % of the last 8 s")}


def test_a_change_is_judged_when_it_has_taken_effect():
    tuner, slow = make(), Pipeline(decode_s=0.08)
    watched(tuner, slow, 2)
    under_way = slow.seen(HOME)._replace(is_changing=True)
    assert not any(tuner.observe(under_way) for _ in range(5))
    assert watched(tuner, slow, 2) == {}
    assert tuner.plan == ReadPlan(4, 2, 2)


def test_it_goes_back_when_decoding_is_quick_again():
    tuner = make()
    watched(tuner, Pipeline(decode_s=0.08), 20)
    assert tuner.plan.num_workers >= 4
    decisions = watched(tuner, Pipeline(decode_s=0.02), 7)
    assert tuner.plan == HOME
    assert "steps waited 0 %, and 1.0 of" in next(iter(decisions.values())).why


def test_a_change_that_brings_nothing_is_taken_back_and_trials_become_rare():
    tuner = make()
    decisions = watched(tuner, Pipeline(decode_s=0.2, cores=2), 400)
    assert tuner.plan == HOME
    assert "the rate changed by +0 %" in [decision.why for decision in decisions.values()]
    windows = list(decisions)
    assert sum(window < 30 for window in windows) <= 8
    assert max(later - earlier for earlier, later in pairwise(windows)) >= 64


def test_busy_cores_get_no_more_workers_than_there_are_cores():
    pipeline = Pipeline(decode_s=0.08, free_cores=0.1, busy_workers=2.0)
    decisions = watched(make(), pipeline, 20)
    assert all(decision.plan.num_workers == 2 for decision in decisions.values())


@pytest.mark.parametrize(
    ("depth", "facts"),
    [
        pytest.param(2, {"queue_share": 0.8}, id="batches are late at times"),
        pytest.param(0, {"busy_workers": 0.9, "queue_share": None}, id="workers idle"),
    ],
)
def test_more_batches_are_tried_before_more_workers_if(depth, facts):
    home = HOME._replace(depth=depth)
    decisions = watched(make(home), Pipeline(decode_s=0.08, **facts), 2)
    assert decisions[1].plan == ReadPlan(2, 4, 2 * depth)


def test_nothing_grows_beyond_the_budget_of_memory():
    pipeline = Pipeline(decode_s=0.2, batch_bytes=100.0, worker_bytes=1000.0)
    tuner = make(budget=2500.0, processes=True)
    watched(tuner, pipeline, 40)
    assert tuner.plan.num_workers <= 4


def test_it_goes_home_when_memory_runs_out():
    tuner = make()
    watched(tuner, Pipeline(decode_s=0.08), 6)
    decisions = watched(tuner, Pipeline(decode_s=0.08, free_memory=0.05), 1)
    assert decisions[0] == Decision(HOME, "only 5 % of memory is free")


observations = st.builds(
    Observation,
    seconds=st.floats(0.5, 20),
    num_batches=st.integers(1, 10_000),
    wait_share=st.floats(0, 1),
    busy_workers=st.floats(0, 32),
    queue_share=st.none() | st.floats(0, 1),
    free_cores=st.floats(0, 8),
    free_memory=st.floats(0, 1),
    batch_bytes=st.floats(0, 1e9),
    worker_bytes=st.floats(0, 1e9),
    num_slices=st.integers(1, 32),
)


@given(st.lists(observations, max_size=60), st.integers(0, 8), st.booleans())
def test_whatever_it_sees_a_plan_keeps_its_limits(seen, num, processes):
    home = ReadPlan(num, 2, 2)
    tuner = make(home, processes=processes)
    before = home
    for observation in seen:
        decision = tuner.observe(observation)
        if decision is not None:
            assert decision.plan != before
            before = decision.plan
        assert tuner.plan == before
        assert min(1, num) <= before.num_workers <= max(16, num)
        assert 2 <= before.ahead <= MOST_AHEAD
        assert before.depth <= MOST_AHEAD
