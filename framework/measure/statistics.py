"""Whether one choice may be called the fastest: only if a test says that chance would hardly make it look so.

The samples are processes. Reports or windows of one process share its memory layout, its threads' places and the minute it ran in, so that
ten of them are not ten samples. The test is the two-sided Mann-Whitney U test, as in ``paceline bench compare=``.
"""

from collections.abc import Sequence
from itertools import count
from math import comb
from statistics import median
from typing import NamedTuple

from framework.errors import ResourceError
from framework.system.extras import needed

LEVEL = 0.01  # how often chance alone may pass the test


class Claim(NamedTuple):
    """What may be said of several choices.

    Attributes:
        highest: The number of the choice with the highest median.
        proved: Whether it may be called the fastest.
        words: The test and what it found.

    """

    highest: int
    proved: bool
    words: str


def claim(samples: Sequence[Sequence[float]], level: float = LEVEL) -> Claim:
    """Compare the choice with the highest median with every other.

    Args:
        samples: Of each choice, at least two, its rate in each process, at least one.
        level: How often chance alone may pass the test against any one of the others.

    """
    highest = max(range(len(samples)), key=lambda number: median(samples[number]))
    others = [sample for number, sample in enumerate(samples) if number != highest]
    if max(least_p(len(samples[highest]), len(other)) for other in others) > level:
        return Claim(
            highest, False, f"not tested: that takes {repeats_needed(level)} processes of each"
        )
    try:
        p = max(u_test(samples[highest], other) for other in others)
    except ResourceError as error:  # without SciPy the caller still has its table
        return Claim(highest, False, f"not tested: {error}")
    if p > level:
        return Claim(
            highest, False, f"no difference found: Mann-Whitney U, p = {p:.2g} against the nearest"
        )
    return Claim(highest, True, f"Mann-Whitney U, p <= {level:g} against every other")


def least_p(num_before: int, num_after: int) -> float:
    """What the test says where all repeats of one side are faster than all of the other: less it cannot say."""
    return min(1.0, 2 / comb(num_before + num_after, num_before))


def repeats_needed(level: float) -> int:
    """The fewest repeats on each side that can reach ``level``."""
    return next(number for number in count(1) if least_p(number, number) <= level)


def u_test(old: Sequence[float], new: Sequence[float]) -> float:
    """How often chance alone would make the ranks of two samples differ at least as much, either way."""
    needed("scipy", "stats")
    from scipy.stats import mannwhitneyu  # noqa: PLC0415  # slow to import, and seldom needed

    ties = len({*old, *new}) < len(old) + len(
        new
    )  # of a file with itself; measured rates have none
    return float(mannwhitneyu(old, new, method="asymptotic" if ties else "exact").pvalue)
