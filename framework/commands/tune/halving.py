"""Successive halving under a time budget: all candidates a little, the best of them longer, the last one against the present settings.

Knows nothing of training: ``measure(candidate, seconds)`` gives rates, so that the search can be tested by numbers.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, final

from framework.commands.tune.candidate import Candidate, preference, with_depths
from framework.commands.tune.paired_test import Pairs
from framework.errors import PacelineError
from framework.measure.statistics import median, spread_share

Measure = Callable[[Candidate, float], Sequence[float]]

KEPT = 3  # one in so many is kept
FEW = 2  # so many are left for the rung of depths
EQUAL = 0.02  # rates that differ by less are the same: the simpler one is taken
FINAL = 0.4  # of the budget is for the pairs
NUM_PAIRS = 10
LEAST_S, GOOD_S = 0.1, 0.3  # of a visit
RECENT = 9  # visits
MOST_PASSES = 4  # over the candidates of a rung


class Entry(NamedTuple):
    """``rates``: of all windows; ``kept``: goes on to the next rung, or to the final."""

    candidate: Candidate
    rates: tuple[float, ...]
    kept: bool

    @property
    def records_per_s(self) -> float:
        return median(self.rates)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        return spread_share(self.rates)


class Rung(NamedTuple):
    """``entries``: the fastest first. ``seconds``: of one visit. ``refused``: (candidate, why). ``untried``: for which no time was left."""

    title: str
    seconds: float
    entries: list[Entry]
    refused: list[tuple[Candidate, str]]
    untried: list[Candidate]


class Final(NamedTuple):
    """``challenger`` against the present settings; ``pairs`` None where there was no time for any, or nobody to compare."""

    default: Candidate
    challenger: Candidate | None
    pairs: Pairs | None

    @property
    def winner(self) -> Candidate:
        """The present settings, unless the challenger is faster by more than the noise."""
        return (
            self.challenger
            if self.challenger and self.pairs and self.pairs.is_won
            else self.default
        )


@final
class Climb:
    """One search over ``candidates``, the present settings first, in ``budget_s`` seconds. ``rungs`` runs it."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        measure: Measure,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.default, self.candidates, self.measure, self.clock = (
            candidates[0],
            list(candidates),
            measure,
            clock,
        )
        self.end, self.final_s = clock() + budget_s, FINAL * budget_s
        self._overheads_s: deque[float] = deque(maxlen=RECENT)
        self.rates: dict[Candidate, list[float]] = {}  # of this rung
        self.before: dict[Candidate, list[float]] = {}  # of the last one

    def rungs(self) -> Iterator[Rung | Final]:
        """Rung by rung, then the final. What the first measurement of all finds cold is not counted."""
        self._visit(self.default, LEAST_S)
        alive, title = self.candidates, "all"
        for left in range(_num_rungs(len(alive)), 1, -1):
            rung = self._rung(title, alive, left)
            yield rung
            kept = [entry.candidate for entry in rung.entries if entry.kept]
            alive, title = list(dict.fromkeys([self.default, *kept])), "the best of them"
        last = list(dict.fromkeys(more for one in alive for more in (one, *with_depths(one))))
        if len(last) > 1:
            yield self._rung(
                "the best, with other depths" if len(last) > len(alive) else title, last, 1
            )
        yield self._final(self._challenger())

    def best_so_far(self) -> tuple[Candidate, float] | None:
        """The fastest of the newest measurements, and its rate beside the present settings'; None where nothing can be said yet."""
        for rates in (self.rates, self.before):
            if len(rates) > 1 and self.default in rates:
                best = max(rates, key=lambda one: median(rates[one]))
                return best, median(rates[best]) / median(rates[self.default])
        return None

    def _rung(self, title: str, alive: Sequence[Candidate], left: int) -> Rung:
        """Measure all of ``alive``, forwards, then backwards, in a share of the time before the final: that of one of ``left`` rungs."""
        share_s = max(0.0, self.end - self.final_s - self.clock()) / left
        until = self.clock() + share_s
        each_s = share_s / len(alive)
        # several short visits see more of what comes and goes
        passes = max(1, min(MOST_PASSES, int(each_s / (self.overhead_s + GOOD_S))))
        seconds = max(LEAST_S, each_s / passes - self.overhead_s)
        self.before, self.rates = self.rates, {}
        refused: dict[Candidate, str] = {}
        for number in range(passes):
            for candidate in (
                alive if number % 2 == 0 else alive[::-1]
            ):  # the present settings first: they have to be there
                late = self.clock() > until + seconds and len(self.rates) > 1
                if candidate not in refused and not late and (why := self._try(candidate, seconds)):
                    refused[candidate] = why
        untried = [
            candidate
            for candidate in alive
            if candidate not in self.rates and candidate not in refused
        ]
        kept = self._best() if left > 1 else {self.default, self._challenger()}
        return Rung(title, seconds, self._ranked(kept), list(refused.items()), untried)

    def _try(self, candidate: Candidate, seconds: float) -> str:
        """Measure it; why that was refused, or nothing. What the present settings raise is the user's to mend."""
        try:
            rates = self._visit(candidate, seconds)
        except PacelineError as error:
            if candidate == self.default:
                raise
            self.rates.pop(candidate, None)
            return str(error)
        self.rates.setdefault(candidate, []).extend(rates)
        return ""

    def _visit(self, candidate: Candidate, seconds: float) -> Sequence[float]:
        start = self.clock()
        rates = self.measure(candidate, seconds)
        self._overheads_s.append(max(0.0, self.clock() - start - seconds))
        return rates

    @property
    def overhead_s(self) -> float:
        """Of a visit, of late: parts are made and closed, and steps may be longer than the time given."""
        return median(self._overheads_s)

    def _ranked(self, kept: Collection[Candidate | None]) -> list[Entry]:
        order = sorted(self.rates, key=lambda one: -median(self.rates[one]))
        return [
            Entry(candidate, tuple(self.rates[candidate]), candidate in kept) for candidate in order
        ]

    def _best(self) -> set[Candidate]:
        """The fastest third, and the present settings, which all the others are compared with."""
        order = sorted(self.rates, key=lambda one: -median(self.rates[one]))
        return {self.default, *order[: max(FEW, math.ceil(len(order) / KEPT))]}

    def _challenger(self) -> Candidate | None:
        """The simplest of those about as fast as the fastest, the present settings apart."""
        medians = {one: median(rates) for one, rates in self.rates.items() if one != self.default}
        if not medians:
            return None
        least = (1 - EQUAL) * max(medians.values())
        return min(
            (one for one in medians if medians[one] >= least),
            key=lambda one: preference(one, self.default),
        )

    def _final(self, challenger: Candidate | None) -> Final:
        """Pairs of visits, the order turned from pair to pair, until the budget is used up."""
        rates: list[tuple[float, float]] = []
        while (
            challenger is not None
            and len(rates) < NUM_PAIRS
            and (left_s := self.end - self.clock()) > 0
        ):
            seconds = max(LEAST_S, left_s / 2 / (NUM_PAIRS - len(rates)) - self.overhead_s)
            order = (
                (self.default, challenger) if len(rates) % 2 == 0 else (challenger, self.default)
            )
            found = {candidate: median(self._visit(candidate, seconds)) for candidate in order}
            rates.append((found[self.default], found[challenger]))
        return Final(self.default, challenger, Pairs(tuple(rates)) if rates else None)


def _num_rungs(count: int) -> int:
    """How often ``count`` is cut to a third until few and the present settings are left, and once more, with depths."""
    num = 1
    while count > FEW + 1:
        count, num = max(FEW, math.ceil(count / KEPT)) + 1, num + 1
    return num
