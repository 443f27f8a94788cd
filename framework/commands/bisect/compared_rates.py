"""Decide by measuring two settings in turn whether the second one is slower.

The test is that of ``paired_test``: Wilcoxon's signed-rank test over pairs of measurements,
one-sided at 2.5 %. It looks after six pairs at the earliest, and stops as soon as it is sure.
"""

from collections.abc import Callable
from math import log
from typing import NamedTuple

from framework.commands.paired_test import LEAST_GAIN, LEAST_PAIRS, LEVEL, Pairs
from framework.measure.statistics import signed_rank_test

SLOWER, ALIKE, UNSURE = "slower", "not slower", "unsure"


class RateComparison(NamedTuple):
    """The result of a test.

    Attributes:
        pairs: The rates, the second setting's first: a gain above 1 means that it is slower.
        verdict: ``slower``, ``not slower`` or ``unsure``.
    """

    pairs: Pairs
    verdict: str

    @property
    def is_slower(self) -> bool:
        return self.verdict == SLOWER

    @property
    def words(self) -> str:
        """The verdict with its numbers."""
        pairs = self.pairs
        low, high = pairs.quartiles
        count = len(pairs.ratios)
        p = f"p = {pairs.chance:.2g}"
        return (
            f"{self.verdict}: {pairs.gain:.3f} times ({low:.3f} to {high:.3f}), {p}, {count} pairs"
        )


Measure = Callable[[], float]


def compared(
    fast: Measure, slow: Measure, most_pairs: int, least_gain: float = LEAST_GAIN
) -> RateComparison:
    """Measure both in turn, in alternating order, until it is sure whether the second is slower.

    Args:
        fast: Measures the rate of the first setting once.
        slow: Measures that of the second.
        most_pairs: When to give up.
        least_gain: A second setting that is slower by less counts as not slower.
    """
    rates: tuple[list[float], list[float]] = ([], [])
    sides = (slow, fast)
    comparison: RateComparison | None = None
    for number in range(max(most_pairs, LEAST_PAIRS)):
        for side in (number % 2, 1 - number % 2):
            rates[side].append(sides[side]())
        if number + 1 >= LEAST_PAIRS:
            pairs = Pairs(tuple(rates[0]), tuple(rates[1]))
            comparison = RateComparison(pairs, _verdict(pairs, least_gain))
            if comparison.verdict != UNSURE:
                return comparison
    assert comparison is not None
    return comparison


def _verdict(pairs: Pairs, least_gain: float) -> str:
    if pairs.gain >= least_gain and pairs.chance <= LEVEL:
        return SLOWER
    below = [log(least_gain / ratio) for ratio in pairs.ratios]
    if pairs.gain < least_gain and signed_rank_test(below) <= LEVEL:
        return ALIKE
    return UNSURE
