"""Medians, quartiles and significance tests for repeated measurements, each by a process."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from math import comb, log
from typing import Any, NamedTuple

from framework.errors import ResourceError
from framework.system.user_code import needed

median = statistics.median

LEVEL = 0.01  # how often chance alone may pass the test
LEAST_GAIN = 1.03  # less is not worth a change: two runs of the same differ by as much
PAIRED_LEVEL = 0.025  # how often the present settings may lose to an equal by chance
LEAST_PAIRS = 6  # fewer cannot reach the level: 1 / 2**6
BUSY_CORES = 0.5  # that other programs take make the rate of a process doubtful
NO_CLAIM = "no difference can be claimed"
ONE_AFTER_THE_OTHER = (
    "all repeats of one choice ran before those of another; let them take turns, by 'paceline "
    "bench' or with seed=0,1,2,3,4 as the first key of a sweep"
)


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile, all within the values."""
    known = list(values)
    if len(known) == 1:
        known *= 2  # the standard library wants two
    low, middle, high = statistics.quantiles(known, n=4, method="inclusive")
    return low, middle, high


def spread_share(values: Iterable[float]) -> float:
    """Return half the distance between the quartiles as a share of the median; 0 for one value."""
    low, middle, high = quartiles([*values] or [0.0])
    return (high - low) / 2 / middle if high > low else 0.0


class Claim(NamedTuple):
    """What may be claimed about several choices."""

    medians: list[float]  # of each choice, over the processes that were compared
    proved: bool  # whether the choice with the highest median may be called the fastest
    words: str  # the test and its result

    @property
    def highest(self) -> int:
        """The number of the choice with the highest median."""
        return self.medians.index(max(self.medians))


def claim(
    samples: Sequence[Sequence[float]],
    loads: Sequence[Sequence[float]],
    places: Sequence[Sequence[float]],
) -> Claim:
    """Compare the choice with the highest median with every other, by Mann-Whitney U tests.

    Processes beside busy programs are left out. Nothing is claimed if all processes of one choice
    ran before those of another, since the machine may have changed.

    Args:
        samples: For each of at least two choices, its rate in each process.
        loads: For each rate, the cores that other programs kept busy.
        places: For each rate, when it was measured, or its place in time.
    """
    quiet = [
        [rate for rate, load in zip(*pair, strict=True) if load < BUSY_CORES]
        for pair in zip(samples, loads, strict=True)
    ]
    if not all(quiet):
        most = max(max(each) for each in loads)
        words = f"not tested: other programs kept up to {most:.1f} cores busy"
        return Claim([median(sample) for sample in samples], False, words)
    num_busy = sum(map(len, samples)) - sum(map(len, quiet))
    tested = Claim([median(sample) for sample in quiet], False, "")
    best = quiet[tested.highest]
    others = [sample for number, sample in enumerate(quiet) if number != tested.highest]
    proved = False
    if max(least_p(len(best), len(other)) for other in others) > LEVEL:
        words = f"not tested: that takes {repeats_needed(LEVEL)} processes of each"
    elif max(map(min, places)) > min(map(max, places)):  # a choice was over before another began
        words = f"not tested: {ONE_AFTER_THE_OTHER}"
    else:
        try:
            p = max(u_test(best, other) for other in others)
            proved = p <= LEVEL
            words = f"no difference found: Mann-Whitney U, p = {p:.2g} against the nearest"
            if proved:
                words = f"Mann-Whitney U, p <= {LEVEL:g} against every other"
        except ResourceError as error:  # without SciPy the caller still has its table
            words = f"not tested: {error}"
    if num_busy:
        words += f"; {num_busy} beside busy programs left out"
    return tested._replace(proved=proved, words=words)


def least_p(num_before: int, num_after: int) -> float:
    """Return the smallest p that the U test can give: all of one side exceed all of the other."""
    return min(1.0, 2 / comb(num_before + num_after, num_before))


def repeats_needed(level: float) -> int:
    """Return the fewest repeats on each side that can reach ``level``."""
    return next(number for number in count(1) if least_p(number, number) <= level)


def u_test(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the two-sided p of the Mann-Whitney U test, exact if no values are equal."""
    needed("scipy", "stats")
    from scipy.stats import mannwhitneyu  # noqa: PLC0415  # slow to import, and seldom needed

    has_ties = len({*old, *new}) < len(old) + len(new)
    return float(mannwhitneyu(old, new, method="asymptotic" if has_ties else "exact").pvalue)


@dataclass(frozen=True)
class Pairs:
    """Records per second of two settings in turn: what slows the machine slows both of a pair."""

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def gain(self) -> float:
        return median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = quartiles(self.ratios)
        return low, high

    @property
    def spread(self) -> float:
        """Half the interquartile range of the ratios, or half the range of fewer than four."""
        low, high = min(self.ratios), max(self.ratios)
        if len(self.ratios) >= 4:
            low, high = self.quartiles
        return (high - low) / 2

    @property
    def chance(self) -> float:
        """The one-sided p of Wilcoxon's signed-rank test: the second looks so good by chance."""
        needed("scipy", "stats")
        from scipy.stats import wilcoxon  # noqa: PLC0415  # slow to import, and seldom needed

        differences = [log(ratio) for ratio in self.ratios]
        if not any(differences):
            return 1.0
        result: Any = wilcoxon(differences, alternative="greater")
        return float(result.pvalue)

    @property
    def is_won(self) -> bool:
        """Whether the second setting is faster by a gain that matters."""
        return self.gain >= LEAST_GAIN and self.chance <= PAIRED_LEVEL


def take_turns(measure: Callable[[int], float], num_pairs: int) -> Pairs:
    """Measure setting 0 and 1 in pairs, which begin with the one and the other in turn."""
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(num_pairs):
        for side in (number % 2, 1 - number % 2):
            rates[side].append(measure(side))
    return Pairs(tuple(rates[0]), tuple(rates[1]))
