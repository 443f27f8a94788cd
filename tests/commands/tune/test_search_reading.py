import random
from pathlib import Path

import pytest

from framework.cli import arguments, hydra_app
from framework.commands.tune import search_reading
from framework.commands.tune.search_reading import Candidate, candidates, whole_grid, worker_counts
from framework.config.schema import check
from framework.errors import ResourceError
from framework.measure.statistics import LEAST_PAIRS, Pairs, median
from framework.trials.trial_process import ReadFacts

NOBODY = arguments.Grant(frozenset(), "")
DECODED = ReadFacts(2, False, True, ("thread", "process"), 2)
GATHERED = ReadFacts(2, False, False, ("thread",), 0)
LOADERS = {"plain": {}, "prefetch": {"depth": 2}, "stream": {"depth": 2}}
DEFAULT = Candidate(2, "thread", "prefetch", 2)
SMALL = candidates(DEFAULT, ReadFacts(2, False, True, ("thread", "process"), 2), LOADERS)
LARGE = candidates(DEFAULT, ReadFacts(16, True, True, ("thread", "process"), 16), LOADERS)


class Machine:
    """Rates as planted, under noise and drift; time passes as it would."""

    def __init__(self, rate, noise=0.0, overhead_s=0.05, step_s=0.0, drift=0.0, seed=0):
        self.rate, self.noise, self.drift = rate, noise, drift
        self.overhead_s, self.step_s = overhead_s, step_s
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

    def search(self, some: list[Candidate], budget_s: float = 60.0):
        search = search_reading.ReadingSearch(some, self.measure, budget_s, self.clock)
        grids, pairs = list(search.grids()), search.final()
        won = pairs is not None and pairs.is_won
        return grids, search.challenger if won else DEFAULT, pairs


def planted(candidate: Candidate) -> float:
    """Return a candidate's rate: four processes are best, and a deep queue helps a little."""
    rate = 100.0 + 20 * min(candidate.num_workers, 4) + (30 if candidate.kind == "process" else 0)
    return rate * (1.2 if candidate.loader != "plain" else 1.0) * (1 + candidate.depth / 100)


@pytest.mark.parametrize("facts", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_is_found_within_5_percent_of_the_whole_grid_under_noise_and_drift(facts, seed):
    machine = Machine(planted, noise=0.03, drift=0.003, seed=seed)
    _, winner, pairs = machine.search(facts)
    best = max(planted(candidate) for candidate in whole_grid(facts))
    assert planted(winner) >= 0.95 * best
    assert pairs.is_won


@pytest.mark.parametrize("facts", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("budget_s", [10.0, 60.0, 300.0])
@pytest.mark.parametrize("step_s", [0.0, 0.05, 0.5, 3.0])
def test_the_budget_is_kept_up_to_a_visit_per_grid(facts, budget_s, step_s):
    machine = Machine(planted, noise=0.02, step_s=step_s)
    grids, *_ = machine.search(facts, budget_s)
    assert machine.now <= budget_s + (1 + 3 * len(grids)) * (3 * step_s + 0.3)


def test_the_settings_and_the_best_three_are_tried_with_other_depths():
    grids, *_ = Machine(lambda each: 50.0 if each == DEFAULT else planted(each)).search(LARGE)
    first, second = grids
    assert first.kept == {DEFAULT, *list(first.rates)[:3]}
    assert set(second.rates) == set(whole_grid(list(first.kept)))
    assert len(second.kept) == 2
    assert DEFAULT in second.kept


def test_each_grid_is_sorted_and_measured_forwards_then_backwards():
    machine = Machine(planted)
    grids, *_ = machine.search(SMALL)
    for grid in grids:
        rates = [median(each) for each in grid.rates.values()]
        assert rates == sorted(rates, reverse=True)
    first = machine.visits[1 : 1 + 2 * len(SMALL)]
    assert first[: len(SMALL)] == SMALL
    assert first == first[::-1]


def test_without_time_for_enough_pairs_the_settings_stay_unproved():
    _, winner, pairs = Machine(planted, step_s=1.0).search(SMALL, 60.0)
    assert len(pairs.before) < LEAST_PAIRS
    assert pairs.gain > 1.2
    assert winner == DEFAULT


def refusing(victim: Candidate):
    def rate(candidate: Candidate) -> float:
        if candidate == victim:
            raise ResourceError(102, "workers.num", "a worker process was lost", "memory")
        return planted(candidate)

    return rate


def test_a_candidate_that_cannot_run_is_left_out_with_the_reason():
    grids, winner, _ = Machine(refusing(SMALL[5])).search(SMALL)
    assert list(grids[0].refused) == [SMALL[5]]
    assert "R102" in grids[0].refused[SMALL[5]]
    assert winner != SMALL[5]


def test_present_settings_that_cannot_run_raise_their_error():
    with pytest.raises(ResourceError):
        Machine(refusing(DEFAULT)).search(SMALL)


OTHER = Candidate(4, "thread", "prefetch", 2)
FASTER, SLOWER = Pairs((100.0,) * 10, (120.0,) * 10), Pairs((100.0,) * 10, (90.0,) * 10)
FEW = Pairs((100.0,) * 3, (120.0,) * 3)


@pytest.mark.parametrize(
    ("challenger", "pairs", "words"),
    [
        *((None, None, "as configured"), (OTHER, None, "budget="), (OTHER, FEW, "budget=")),
        *((OTHER, SLOWER, "10.0 % slower"), (OTHER, FASTER, "120 records/s")),
    ],
)
def test_the_verdict_says_what_the_pairs_prove(challenger, pairs, words):
    text = search_reading.verdict(DEFAULT, challenger, pairs)
    assert words in text
    assert "\n" not in text


def test_a_busy_machine_is_noted(monkeypatch, capsys):
    monkeypatch.setattr("framework.commands.tune.search_reading.num_cores", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (3.0, 0.0, 0.0))
    search_reading.print_busy()
    assert "3.0" in capsys.readouterr().out
    monkeypatch.setattr("os.getloadavg", lambda: (1.0, 0.0, 0.0))
    search_reading.print_busy()
    assert capsys.readouterr().out == ""


def test_no_processes_and_few_threads_for_records_that_are_only_gathered():
    result = candidates(Candidate(0, "thread", "prefetch", 2), GATHERED, LOADERS)
    assert {candidate.kind for candidate in result} == {"thread"}
    assert {candidate.num_workers for candidate in result} == {0, 1, 2}


def test_no_more_workers_than_twice_the_cores():
    assert worker_counts(DECODED) == [0, 1, 2, 4]
    assert worker_counts(ReadFacts(6, True, True, ("thread", "process"), 6)) == [0, 1, 2, 4, 6, 8]
    assert worker_counts(ReadFacts(1, False, True, ("thread", "process"), 1)) == [0, 1, 2]


def test_stream_is_tried_with_cuda_only_or_if_it_was_chosen():
    cuda = ReadFacts(2, True, True, ("thread", "process"), 2)
    assert not [each for each in candidates(DEFAULT, DECODED, LOADERS) if each.loader == "stream"]
    assert [each for each in candidates(DEFAULT, cuda, LOADERS) if each.loader == "stream"]
    chosen = Candidate(2, "thread", "stream", 2)
    assert candidates(chosen, DECODED, LOADERS)[0] == chosen


def test_the_present_settings_come_first_and_nothing_twice():
    result = candidates(DEFAULT, DECODED, LOADERS)
    assert result[0] == DEFAULT
    assert len(set(result)) == len(result) == 14
    assert len(set(whole_grid(result))) == len(whole_grid(result)) == 7 + 7 * 4


def test_among_equals_few_changes_threads_and_few_workers_are_preferred():
    order = [
        Candidate(2, "thread", "plain", 0),
        Candidate(1, "thread", "plain", 0),
        Candidate(1, "process", "plain", 0),
    ]
    places = [search_reading.preference(each, order[0]) for each in order]
    assert places == sorted(places)
    assert len(set(places)) == len(order)


def test_a_candidate_makes_a_valid_configuration():
    config, _ = hydra_app.composed(["workers.kind=process", "workers.start_method=spawn"], NOBODY)
    for candidate in candidates(DEFAULT, DECODED, {"prefetch": config["loader"]}):
        made = search_reading.applied(config, candidate, {"prefetch": config["loader"]})
        check(made)
        assert made["workers"]["num"] == candidate.num_workers
        assert made["workers"]["start_method"] == ("spawn" if candidate.kind == "process" else None)


DEEP, PLAIN = Candidate(4, "process", "prefetch", 8), Candidate(0, "thread", "plain", 0)
CASES = [
    ("", None),
    ("", DEEP),
    ("recipes=cifar10 source=here model.width=64 optim.lr=.1 data=lmdb data.train=a.lmdb", PLAIN),
    ("recipes=photos loader=plain loader.pin_memory=false workers.num=3 +optim.foreach=true", None),
    ("recipes=photos loader=plain loader.pin_memory=false transform.size=[8,8] sink=[]", DEEP),
    ("workers.kind=process workers.start_method=spawn workers.num=2 debug=tiny", PLAIN),
    ("recipes=[] dataset=d data.val=null +input@prepare.train.input=digits", DEEP),
]


@pytest.mark.parametrize(("words", "winner"), CASES, ids=range(len(CASES)))
def test_a_recipe_with_the_other_words_is_the_run_that_was_tuned(words, winner):
    words = words.split()
    wanted, _ = hydra_app.composed(words, NOBODY)
    kept = words if winner is None else search_reading.without_searched(words, loader_changed=True)
    if winner is not None:
        block = hydra_app.composed([*kept, f"loader={winner.loader}"], NOBODY)[0]["loader"]
        wanted = search_reading.applied(wanted, winner, {winner.loader: block})
    text = search_reading.recipe(search_reading.base_recipes(words), winner, ["tuned today"])
    path = Path("recipes/tuned/x.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    others = [word for word in kept if not word.startswith("recipes=")]
    assert hydra_app.composed(["recipes=tuned/x", *others], NOBODY, ".")[0] == wanted
    assert text.splitlines()[:2] == ["# @package _global_", "# tuned today"]
