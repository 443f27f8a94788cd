"""Successive halving within a time budget.

All candidates are measured briefly, the fastest third for longer, and so on. The last one is
compared with the present settings, in pairs. ``measure(candidate, seconds)`` returns a rate, so
that tests need no training.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

from framework.commands.tune.candidate import Candidate, preference, whole_grid
from framework.errors import PacelineError
from framework.measure.statistics import Pairs, median, spread_share

Measure = Callable[[Candidate, float], float]

KEPT = 3  # one in so many candidates is kept
FEW = 2  # so many candidates are left for the rung of depths
EQUAL = 0.02  # rates that differ by a smaller share are equal, and the simpler candidate wins
FINAL = 0.4  # the share of the budget for the pairs
NUM_PAIRS = 10
LEAST_S = 0.1  # of a visit
GOOD_S = 0.3
RECENT = 9  # visits whose overhead is remembered
MOST_PASSES = 4  # over the candidates of a rung


class Entry(NamedTuple):
    candidate: Candidate
    rates: tuple[float, ...]  # of all visits
    kept: bool  # for the next rung, or the final

    @property
    def records_per_s(self) -> float:
        return median(self.rates)

    @property
    def spread(self) -> float:
        """Half the interquartile range, as a share of the median."""
        return spread_share(self.rates)


class Rung(NamedTuple):
    title: str
    seconds: float  # of a visit
    entries: list[Entry]  # the fastest first
    refused: list[tuple[Candidate, str]]  # with the reason
    untried: list[Candidate]  # for lack of time


class Final(NamedTuple):
    default: Candidate
    challenger: Candidate | None  # None: nothing to compare
    pairs: Pairs | None  # None: no time for any

    @property
    def winner(self) -> Candidate:
        """The challenger if it is proved faster, else the present settings."""
        if self.challenger is not None and self.pairs is not None and self.pairs.is_won:
            return self.challenger
        return self.default


@final
class Climb:
    """A search over ``candidates``, the present settings first, within ``budget_s`` seconds."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        measure: Measure,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.default = candidates[0]
        self.candidates = list(candidates)
        self.measure = measure
        self.clock = clock
        self.end = clock() + budget_s
        self.final_s = FINAL * budget_s
        self.rates: dict[Candidate, list[float]] = {}  # of this rung
        self.before: dict[Candidate, list[float]] = {}  # of the last rung
        self._overheads_s: deque[float] = deque(maxlen=RECENT)

    def rungs(self) -> Iterator[Rung | Final]:
        """Measure and yield rung by rung, then the final."""
        self._visit(self.default, LEAST_S)  # the first visit is cold and does not count
        alive = self.candidates
        title = "all"
        for left in range(_num_rungs(len(alive)), 1, -1):
            rung = self._rung(title, alive, left)
            yield rung
            kept = [entry.candidate for entry in rung.entries if entry.kept]
            alive = list(dict.fromkeys([self.default, *kept]))
            title = "the best of them"
        last = whole_grid(alive)
        if len(last) > len(alive):
            title = "the best, with other depths"
        if len(last) > 1:
            yield self._rung(title, last, 1)
        yield self._final(self._challenger())

    def best_so_far(self) -> tuple[Candidate, float] | None:
        """Return the fastest candidate and its rate over that of the present settings, if known."""
        for rates in (self.rates, self.before):
            if len(rates) > 1 and self.default in rates:
                best = max(rates, key=lambda candidate: median(rates[candidate]))
                return best, median(rates[best]) / median(rates[self.default])
        return None

    def _rung(self, title: str, alive: Sequence[Candidate], left: int) -> Rung:
        """Measure ``alive`` forwards and backwards for 1 / ``left`` of the time until the final."""
        share_s = max(0.0, self.end - self.final_s - self.clock()) / left
        until = self.clock() + share_s
        each_s = share_s / len(alive)
        # Several short visits see more of what disturbs the machine for a while.
        passes = max(1, min(MOST_PASSES, int(each_s / (self.overhead_s + GOOD_S))))
        seconds = max(LEAST_S, each_s / passes - self.overhead_s)
        self.before = self.rates
        self.rates = {}
        refused: dict[Candidate, str] = {}
        for number in range(passes):
            # The present settings come first, because every rung needs them.
            for candidate in alive if number % 2 == 0 else alive[::-1]:
                is_late = self.clock() > until + seconds and len(self.rates) > 1
                if is_late or candidate in refused:
                    continue
                try:
                    rate = self._visit(candidate, seconds)
                    self.rates.setdefault(candidate, []).append(rate)
                except PacelineError as error:
                    if candidate == self.default:
                        raise
                    self.rates.pop(candidate, None)
                    refused[candidate] = str(error)
        order = sorted(self.rates, key=lambda candidate: -median(self.rates[candidate]))
        kept = {self.default, self._challenger()}
        if left > 1:
            kept = {self.default, *order[: max(FEW, math.ceil(len(order) / KEPT))]}
        entries = [Entry(each, tuple(self.rates[each]), each in kept) for each in order]
        untried = [each for each in alive if each not in self.rates and each not in refused]
        return Rung(title, seconds, entries, list(refused.items()), untried)

    def _visit(self, candidate: Candidate, seconds: float) -> float:
        start = self.clock()
        rate = self.measure(candidate, seconds)
        self._overheads_s.append(max(0.0, self.clock() - start - seconds))
        return rate

    @property
    def overhead_s(self) -> float:
        """How much longer recent visits took than planned: parts are built, steps may be long."""
        return median(self._overheads_s)

    def _challenger(self) -> Candidate | None:
        """Return the simplest of the fastest candidates, apart from the present settings."""
        medians = {each: median(rates) for each, rates in self.rates.items()}
        medians.pop(self.default, None)
        if not medians:
            return None
        least = (1 - EQUAL) * max(medians.values())
        fast = [candidate for candidate in medians if medians[candidate] >= least]
        return min(fast, key=lambda candidate: preference(candidate, self.default))

    def _final(self, challenger: Candidate | None) -> Final:
        """Compare in pairs of visits, in alternating order, until the budget is used up."""
        if challenger is None:
            return Final(self.default, None, None)
        sides = (self.default, challenger)
        rates: tuple[list[float], list[float]] = ([], [])
        for number in range(NUM_PAIRS):
            left_s = self.end - self.clock()
            if left_s <= 0:
                break
            seconds = max(LEAST_S, left_s / 2 / (NUM_PAIRS - number) - self.overhead_s)
            for side in (number % 2, 1 - number % 2):
                rates[side].append(self._visit(sides[side], seconds))
        pairs = None
        if rates[0]:
            pairs = Pairs(tuple(rates[0]), tuple(rates[1]))
        return Final(self.default, challenger, pairs)


def _num_rungs(count: int) -> int:
    """Return how many rungs cut ``count`` candidates to the last few, plus one with depths."""
    num = 1
    while count > FEW + 1:
        count = max(FEW, math.ceil(count / KEPT)) + 1
        num += 1
    return num
