"""Compare two settings that were measured in turn.

What slows the machine for a while then slows both settings of a pair.
"""

from dataclasses import dataclass
from math import log

from framework.measure.statistics import median, quartiles, signed_rank_test

LEAST_GAIN = 1.03  # less is not worth a change: two runs of the same differ by as much
LEVEL = 0.025  # how often the present settings may lose to an equal by chance
LEAST_PAIRS = 6  # fewer cannot reach the level: 1 / 2**6


@dataclass(frozen=True)
class Pairs:
    """Records per second of two settings, measured in pairs."""

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """The second rate over the first, pair by pair."""
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def gain(self) -> float:
        """The median ratio."""
        return median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The quartiles of the ratios."""
        low, _, high = quartiles(self.ratios)
        return low, high

    @property
    def spread(self) -> float:
        """Half the interquartile range of the ratios, or half the range of fewer than four."""
        if len(self.ratios) < 4:
            return (max(self.ratios) - min(self.ratios)) / 2
        low, high = self.quartiles
        return (high - low) / 2

    @property
    def chance(self) -> float:
        """The probability that equal settings look at least this good for the second."""
        return signed_rank_test([log(ratio) for ratio in self.ratios])

    @property
    def is_won(self) -> bool:
        """Whether the second setting is faster by a gain that matters."""
        return self.gain >= LEAST_GAIN and self.chance <= LEVEL
