"""The largest batch that fits, by doubling and bisection, and the rate over the batch size. Knows nothing of training."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

from framework.measure.statistics import median, spread_share

LEAST = 8  # records: where doubling begins
FINE = 16  # the largest is known to one part in so many
NUM_TRIALS = 14  # about so many sizes are tried
SECOND_LOOK = 0.4  # of the budget is for measuring the rates once more, the largest first
NEAR = 0.97  # of the best rate is good enough
LONGEST = 0.25  # of the budget for one size
PATIENCE_S, FIRST_S = (
    20.0,
    600.0,
)  # before a size is given up: what was foreseen may come late on a busy machine; the smallest has to run
MOST_OTHERS = 2


class Trial(NamedTuple):
    """One size: its ``rates`` (records per second, by windows), or ``why`` it does not run. ``memory``: for lack of it; ``late``: it would
    have taken too long to find out. ``peak_bytes``: of the host's memory, or of the device's on CUDA.
    """

    batch_size: int
    rates: tuple[float, ...] = ()
    step_s: float = 0.0
    peak_bytes: int = 0
    why: str = ""
    memory: bool = False
    late: bool = False

    @property
    def fits(self) -> bool:
        return not self.why

    @property
    def records_per_s(self) -> float:
        return median(self.rates)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        return spread_share(self.rates)


Attempt = Callable[
    [int, float, float], Trial
]  # (batch size, seconds, seconds after which to give up)


@dataclass(frozen=True)
class SpeedCurve:
    """All sizes that were tried, the smallest first. ``bound``: what the largest is bounded by: ``memory``, ``records`` (of an
    epoch), ``time`` or ``error``.
    """

    trials: tuple[Trial, ...]
    bound: str

    @property
    def fitting(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.fits]

    @property
    def largest(self) -> Trial:
        return self.fitting[-1]

    @property
    def recommended(self) -> Trial:
        """The smallest that is nearly as fast as the fastest."""
        best = max(trial.records_per_s for trial in self.fitting)
        return next(trial for trial in self.fitting if trial.records_per_s >= NEAR * best)


@final
class Sizes:
    """One search. ``most``: records of an epoch; ``step``: sizes are multiples of it. ``run`` yields every trial as it is made."""

    def __init__(
        self,
        attempt: Attempt,
        most: int,
        step: int,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.attempt, self.most, self.step, self.budget_s, self.clock = (
            attempt,
            most,
            step,
            budget_s,
            clock,
        )
        self.start = clock()
        self.trials: dict[int, Trial] = {}
        self.bound = "records"

    @property
    def curve(self) -> SpeedCurve:
        """What is known so far."""
        return SpeedCurve(tuple(self.trials[size] for size in sorted(self.trials)), self.bound)

    def run(self) -> Iterator[Trial]:
        """Double, bisect, then measure the rates again. Ends at the first trial where that, the smallest, does not run."""
        seconds = (1 - SECOND_LOOK) * self.budget_s / NUM_TRIALS
        bad = yield from self._double(seconds)
        if bad is not None:
            yield from self._bisect(bad, seconds)
        yield from self._again()

    def _double(self, seconds: float) -> Iterator[Trial]:
        """Up to the first that does not fit, which is returned; None: all did, or there is no time for more."""
        size = min(self.most, -(-LEAST // self.step) * self.step)
        others = 0  # failures one after the other that have nothing to do with memory: a last batch of one record, say
        while True:
            trial = self._try(size, seconds)
            yield trial
            others = 0 if trial.fits else others + 1
            if trial.memory:
                self.bound = "memory"
                return size if self.curve.fitting else None
            if trial.late or self._too_slow(trial):
                self.bound = "time"
                return None
            if size == self.most or others == MOST_OTHERS or not self.curve.fitting:
                self.bound = "error" if others else "records"
                return None
            size = min(self.most, 2 * size)

    def _too_slow(self, trial: Trial) -> bool:
        """Whether twice the size, of which three steps are taken at least, would take more than its part of the time."""
        return trial.fits and 3 * 2 * trial.step_s > LONGEST * self.budget_s

    def _bisect(self, bad: int, seconds: float) -> Iterator[Trial]:
        good = self.curve.largest.batch_size
        while bad - good > max(self.step, good // FINE) and self._left_s() > 0:
            middle = max(good + self.step, (good + bad) // 2 // self.step * self.step)
            trial = self._try(middle, seconds)
            yield trial
            good, bad = (middle, bad) if trial.fits else (good, middle)

    def _again(self) -> Iterator[Trial]:
        """The largest first, so that a machine that gets slower or faster meanwhile does not bend the curve."""
        sizes = [trial.batch_size for trial in reversed(self.curve.fitting)]
        for number, size in enumerate(sizes):
            left_s = self._left_s() / (len(sizes) - number)
            if left_s < 3 * self.trials[size].step_s:
                continue
            before = self.trials[size]
            trial = self._try(size, left_s / 2)
            if not trial.fits:  # it did before: others take memory now, so this size is not sure
                self.bound = "memory" if trial.memory else self.bound
                yield trial
                continue
            self.trials[size] = trial._replace(
                rates=(*before.rates, *trial.rates),
                peak_bytes=max(before.peak_bytes, trial.peak_bytes),
            )
            yield self.trials[size]

    def _left_s(self) -> float:
        return max(0.0, self.start + self.budget_s - self.clock())

    def _try(self, size: int, seconds: float) -> Trial:
        limit_s = (
            max(PATIENCE_S, LONGEST * self.budget_s) + seconds if self.curve.fitting else FIRST_S
        )
        self.trials[size] = self.attempt(size, seconds, limit_s)
        return self.trials[size]
