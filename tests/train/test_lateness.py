"""Who made whom wait, from times that are known exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.contracts.span import SPANS
from framework.train.lateness import (
    LateSteps,
    StepTimes,
    clock_offsets,
    late_rank,
    late_steps,
    same_steps,
)

STEP_S = 0.1


def times(delays_s, span="forward", uncertainty_s=0.0, explained=True):
    """Return times of steps of 0.1 s, in which each rank is late by ``delays_s`` [ranks, steps].

    If ``explained``, the rank spends the delay with own work in ``span``.
    """
    delays_s = np.asarray(delays_s, dtype=float)
    own_s = np.full((*delays_s.shape, len(SPANS)), 0.01)
    if explained:
        own_s[:, :, SPANS.index(span)] += delays_s
    arrived_s = np.arange(delays_s.shape[1]) * STEP_S + delays_s
    exchange_s = STEP_S - own_s.sum(axis=2)
    return StepTimes(arrived_s, own_s, exchange_s, np.full(delays_s.shape, uncertainty_s))


def delayed(num_ranks, rank, late_s, num_steps=40, share=1.0):
    delays_s = np.zeros((num_ranks, num_steps))
    delays_s[rank, : int(share * num_steps)] = late_s
    return delays_s


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_the_slow_rank_and_its_span_are_named(num_ranks, span):
    steps = late_steps(times(delayed(num_ranks, 1, 0.03), span))
    late = late_rank(steps, num_ranks)
    assert (late.rank, late.span, late.steps_share) == (1, span, 1.0)
    assert late.late_s == pytest.approx(0.03)
    assert late.lost_share == pytest.approx(0.3)


def test_a_rank_that_is_late_in_some_steps_is_named_with_their_share():
    late = late_rank(late_steps(times(delayed(4, 3, 0.05, share=0.7))), 4)
    assert (late.rank, late.steps_share) == (3, 0.7)
    assert late.words == (
        "rank 3 is late in 70 % of the steps, in `forward`, by 50 ms; "
        "the others lost 35 % of the run"
    )


def test_two_slow_ranks_of_four_are_not_excused_by_each_other():
    delays_s = delayed(4, 0, 0.05) * (np.arange(40) % 2) + delayed(4, 2, 0.05) * (np.arange(40) % 2)
    delays_s[2] = 0.05 - delays_s[0]
    assert late_rank(late_steps(times(delays_s)), 4).rank in (0, 2)


def test_without_delays_nobody_is_late():
    assert late_rank(late_steps(times(np.zeros((3, 40)))), 3) is None


def test_ranks_that_are_late_by_turns_are_not_named():
    delays_s = np.zeros((2, 40))
    delays_s[np.arange(40) % 2, np.arange(40)] = 0.03
    assert late_rank(late_steps(times(delays_s)), 2) is None


@settings(max_examples=20)
@given(st.integers(0, 1 << 30), st.integers(2, 8))
def test_chance_rarely_names_a_rank(seed, num_ranks):
    random = np.random.default_rng(seed)
    named = 0
    for _ in range(10):
        delays_s = random.exponential(0.02, (num_ranks, 200))
        named += late_rank(late_steps(times(delays_s)), num_ranks) is not None
    assert named <= 1


def test_waiting_for_the_last_rank_is_distinguished_from_the_exchange_itself():
    steps = late_steps(times(delayed(2, 1, 0.03, num_steps=10)))
    assert steps.exchange_s == pytest.approx(10 * 0.01)
    assert steps.waiting_s == pytest.approx(10 * 0.015)  # one of two ranks waits for 0.03 s


def test_a_few_steps_prove_nothing():
    assert late_rank(late_steps(times(delayed(2, 1, 0.05, num_steps=4))), 2) is None


def test_lateness_below_the_uncertainty_is_not_claimed():
    delays_s = delayed(2, 1, 0.03)
    assert late_rank(late_steps(times(delays_s, uncertainty_s=0.031)), 2) is None
    late = late_rank(late_steps(times(delays_s, uncertainty_s=0.02)), 2)
    assert "by 30 ms (clocks agree within 20 ms)" in late.words


def test_who_comes_late_without_more_work_of_its_own_is_not_blamed():
    """It waited inside an exchange, or was released late by it."""
    assert late_rank(late_steps(times(delayed(2, 1, 0.03), explained=False)), 2) is None


def test_steps_add_up():
    whole = late_steps(times(delayed(2, 1, 0.03)))
    parts = LateSteps()
    for _ in range(4):
        parts = parts + late_steps(times(delayed(2, 1, 0.03, num_steps=10)))
    assert late_rank(parts, 2)._replace(late_s=0.03, lost_share=0.3) == late_rank(
        whole, 2
    )._replace(late_s=0.03, lost_share=0.3)
    assert late_rank(parts, 2).late_s == pytest.approx(0.03)


def test_only_steps_that_all_ranks_have_are_compared():
    rows = [
        np.array([[number, rank] for number in steps])
        for rank, steps in enumerate(((0, 1, 2, 4), (1, 2, 3, 4), (0, 1, 4)))
    ]
    assert [own.tolist() for own in same_steps(rows)] == [
        [[1, rank], [4, rank]] for rank in range(3)
    ]


def rounds(offsets_s, travels_s, waits_s):
    """Return starts and ends of rounds by clocks that are ahead by ``offsets_s``."""
    starts_s = np.cumsum(waits_s, axis=1) + np.arange(waits_s.shape[1]) * 10
    ends_s = starts_s.max(axis=0) + travels_s
    offsets_s = np.asarray(offsets_s)[:, None]
    return starts_s + offsets_s, ends_s + offsets_s


@given(st.integers(0, 1 << 30), st.integers(2, 6))
def test_the_offset_of_a_clock_is_within_its_uncertainty(seed, num_ranks):
    random = np.random.default_rng(seed)
    offsets_s = np.concatenate([[0.0], random.uniform(-1e3, 1e3, num_ranks - 1)])
    travels_s = random.exponential(1e-3, (num_ranks, 8))
    waits_s = random.exponential(1e-3, (num_ranks, 8))
    known = clock_offsets(*rounds(offsets_s, travels_s, waits_s))
    assert (np.abs(known.offsets_s - offsets_s) <= known.uncertainty_s + 1e-9).all()
    assert (known.uncertainty_s[0], known.offsets_s[0]) == (0.0, 0.0)


def test_the_quickest_round_decides_the_uncertainty():
    travels_s = np.array([[0.5, 0.001, 0.5]] * 2)
    known = clock_offsets(*rounds([0.0, 7.0], travels_s, np.zeros((2, 3))))
    assert known.offsets_s[1] == pytest.approx(7.0)
    assert known.uncertainty_s[1] == pytest.approx(0.001)
