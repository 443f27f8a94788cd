import random

import pytest

from framework.commands.tune.candidate import Candidate, CandidateFacts, candidates, whole_grid
from framework.commands.tune.halving import Climb, Final, Rung
from framework.errors import ResourceError
from framework.measure.statistics import LEAST_PAIRS, median

LOADERS = {"plain": {}, "prefetch": {"depth": 2}, "stream": {"depth": 2}}
DEFAULT = Candidate(2, "thread", "prefetch", 2)
SMALL = candidates(DEFAULT, CandidateFacts(2, False, True, ("thread", "process"), 2), LOADERS)
LARGE = candidates(DEFAULT, CandidateFacts(16, True, True, ("thread", "process"), 16), LOADERS)


class Machine:
    """Rates as planted, under noise and drift; time passes as it would."""

    def __init__(self, rate, noise=0.0, overhead_s=0.05, step_s=0.0, drift=0.0, seed=0):
        self.rate, self.noise, self.overhead_s, self.step_s, self.drift = (
            rate,
            noise,
            overhead_s,
            step_s,
            drift,
        )
        self.now, self.random, self.visits = 0.0, random.Random(seed), []

    def clock(self) -> float:
        return self.now

    def measure(self, candidate: Candidate, seconds: float):
        self.visits.append(candidate)
        self.now += self.overhead_s + max(seconds, 3 * self.step_s)
        slow = 1 - self.drift * self.now
        return median(
            self.rate(candidate) * slow * self.random.gauss(1.0, self.noise) for _ in range(4)
        )

    def climb(self, some: list[Candidate], budget_s: float = 60.0) -> tuple[list[Rung], Final]:
        *rungs, final = Climb(some, self.measure, budget_s, self.clock).rungs()
        return rungs, final


def planted(candidate: Candidate) -> float:
    """Return a candidate's rate: four processes are best, and a deep queue helps a little."""
    rate = 100.0 + 20 * min(candidate.num_workers, 4) + (30 if candidate.kind == "process" else 0)
    return rate * (1.2 if candidate.loader != "plain" else 1.0) * (1 + candidate.depth / 100)


@pytest.mark.parametrize("facts", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_is_found_within_5_percent_of_the_whole_grid_under_noise_and_drift(facts, seed):
    machine = Machine(planted, noise=0.03, drift=0.003, seed=seed)
    _, final = machine.climb(facts)
    best = max(planted(candidate) for candidate in whole_grid(facts))
    assert planted(final.winner) >= 0.95 * best
    assert final.pairs.is_won


@pytest.mark.parametrize("facts", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("budget_s", [10.0, 60.0, 300.0])
@pytest.mark.parametrize("step_s", [0.0, 0.05, 0.5, 3.0])
def test_the_budget_is_kept_up_to_a_visit_per_rung(facts, budget_s, step_s):
    machine = Machine(planted, noise=0.02, step_s=step_s)
    rungs, _ = machine.climb(facts, budget_s)
    assert machine.now <= budget_s + (1 + 3 * len(rungs)) * (3 * step_s + 0.3)


def test_the_settings_are_in_every_rung_and_fewer_go_on():
    rungs, _ = Machine(lambda each: 50.0 if each == DEFAULT else planted(each)).climb(LARGE)
    assert all(
        DEFAULT in [entry.candidate for entry in rung.entries if entry.kept] for rung in rungs
    )
    halving = [len(rung.entries) for rung in rungs[:-1]]
    assert halving == sorted(halving, reverse=True)
    assert len(rungs) == 4


def test_each_rung_is_sorted_and_measured_forwards_then_backwards():
    machine = Machine(planted)
    rungs, _ = machine.climb(SMALL)
    for rung in rungs:
        rates = [entry.records_per_s for entry in rung.entries]
        assert rates == sorted(rates, reverse=True)
    first = machine.visits[1 : 1 + 2 * len(SMALL)]
    assert first[: len(SMALL)] == SMALL
    assert first == first[::-1]


def test_without_time_for_enough_pairs_the_settings_stay_unproved():
    _, final = Machine(planted, step_s=1.0).climb(SMALL, 60.0)
    assert len(final.pairs.before) < LEAST_PAIRS
    assert final.pairs.gain > 1.2
    assert final.winner == DEFAULT


def refusing(victim: Candidate):
    def rate(candidate: Candidate) -> float:
        if candidate == victim:
            raise ResourceError(102, "workers.num", "a worker process was lost", "memory")
        return planted(candidate)

    return rate


def test_a_candidate_that_cannot_run_is_left_out_with_the_reason():
    rungs, final = Machine(refusing(SMALL[5])).climb(SMALL)
    assert [(candidate, "R102" in why) for candidate, why in rungs[0].refused] == [(SMALL[5], True)]
    assert final.winner != SMALL[5]


def test_present_settings_that_cannot_run_raise_their_error():
    with pytest.raises(ResourceError):
        Machine(refusing(DEFAULT)).climb(SMALL)


@pytest.mark.parametrize("at", [1, 2, 3, 20, 60])
def test_the_best_so_far_is_known_when_a_visit_is_broken_off(at):
    machine = Machine(planted)

    def measure(candidate: Candidate, seconds: float):
        if len(machine.visits) == at:
            raise KeyboardInterrupt
        return machine.measure(candidate, seconds)

    climb = Climb(SMALL, measure, 60.0, machine.clock)
    with pytest.raises(KeyboardInterrupt):
        list(climb.rungs())
    assert (climb.best_so_far() is None) == (at < 3)
