"""Whether one of two is faster, told by measuring them in turn, pair by pair: what slows the machine for a while slows both."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import log

LEAST_GAIN = 1.03  # less is not worth a change: two runs of the same differ by as much
LEVEL = 0.025  # how often the present settings may lose to an equal by chance
LEAST_PAIRS = 6  # fewer cannot reach the level: 1 / 2**6


@dataclass(frozen=True)
class Pairs:
    """``rates``: (the first's, the second's) records per second, a pair after the other."""

    rates: tuple[tuple[float, float], ...]

    @property
    def ratios(self) -> list[float]:
        """The second's rate over the first's."""
        return [second / first for first, second in self.rates]

    @property
    def gain(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Of the ratios."""
        if len(self.rates) < 2:
            return self.gain, self.gain
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    @property
    def chance(self) -> float:
        """How probable it is that equals look like this, or better for the second: Wilcoxon's signed-rank test, exact, one-sided."""
        return signed_rank_chance([log(ratio) for ratio in self.ratios])

    @property
    def is_won(self) -> bool:
        """Whether the second is faster, and by enough."""
        return self.gain >= LEAST_GAIN and self.chance <= LEVEL


def signed_rank_chance(differences: Sequence[float]) -> float:
    """The probability of a sum of negative ranks as small as this one's, all signs being equally likely. Up to some 16 differences."""
    by_size = sorted((difference for difference in differences if difference), key=abs)
    found = sum(rank for rank, difference in enumerate(by_size, 1) if difference < 0)
    signs = product((0, 1), repeat=len(by_size))
    as_small = sum(
        sum(rank for rank, is_negative in enumerate(row, 1) if is_negative) <= found
        for row in signs
    )
    return as_small / 2 ** len(by_size)
