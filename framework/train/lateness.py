"""Who made whom wait: pure functions of the times at which ranks come to their exchanges.

A step ends with an exchange of gradients, in which all ranks wait for the last one. The rank that
comes last is late if its own work took longer than that of the others. Time inside an exchange is
nobody's own work.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from framework.contracts.rank_spans import LateRank
from framework.contracts.span import SPANS, Span

Array = NDArray[np.float64]

LEAST_SHARE = 0.01  # of a step; coming later by less does not count
EXPLAINED = 0.5  # the share of its lateness that a rank's own work must explain
# A rank is named if the others wait for it this many times as long as for another rank on average,
# for this share of the run at least, and longer than chance explains by so many standard errors.
TIMES = 2.0
LEAST_LOST = 0.01
ERRORS = 3.0


class ClockOffsets(NamedTuple):
    """By how much the clocks of ranks are ahead of rank 0's.

    Attributes:
        offsets_s: float64 [ranks].
        uncertainty_s: The most by which each may be wrong, float64 [ranks].
    """

    offsets_s: Array
    uncertainty_s: Array


def clock_offsets(starts_s: Array, ends_s: Array) -> ClockOffsets:
    """Return the offsets of clocks from rounds in which no rank ends before every rank has begun.

    So in each round a rank's end is later than rank 0's start, and its start is earlier than rank
    0's end. The tightest of these bounds over all rounds hold the offset.

    Args:
        starts_s: When each rank began a round, by its own clock: float64 [ranks, rounds].
        ends_s: When each rank ended it, in the same way.

    Source: D. Mills, "Internet time synchronization: the network time protocol", 1991, whose
        minimal round trip is the tightest pair of bounds here.
    """
    most = (ends_s - starts_s[:1]).min(axis=1)
    least = (starts_s - ends_s[:1]).max(axis=1)
    offsets_s = (most + least) / 2
    uncertainty_s = np.maximum(most - least, 0.0) / 2
    offsets_s[0] = uncertainty_s[0] = 0.0
    return ClockOffsets(offsets_s, uncertainty_s)


class StepTimes(NamedTuple):
    """The same steps on all ranks.

    Attributes:
        arrived_s: When each rank came to the exchange of gradients, by rank 0's clock: float64
            [ranks, steps].
        own_s: Seconds of own work before it: float64 [ranks, steps, len(SPANS)].
        exchange_s: Seconds in exchanges: float64 [ranks, steps].
        uncertainty_s: How wrong the difference of a rank's arrival to that of any other may be:
            float64 [ranks, steps].
    """

    arrived_s: Array
    own_s: Array
    exchange_s: Array
    uncertainty_s: Array

    @property
    def step_s(self) -> Array:
        """Seconds of each whole step, as a mean over the ranks: float64 [steps]."""
        return (self.own_s.sum(axis=2) + self.exchange_s).mean(axis=0)


def same_steps(rows: Sequence[Array]) -> list[Array]:
    """Return the rows, as in ``KnowsOwnWork.own_work``, of those steps that all ranks have."""
    numbers = rows[0][:, 0]
    for more in rows[1:]:
        numbers = np.intersect1d(numbers, more[:, 0])
    return [own[np.isin(own[:, 0], numbers)] for own in rows]


@final
@dataclass(frozen=True)
class LateSteps:
    """How often and for how long each rank was late, and in which span. They add up."""

    num_steps: int = 0
    total_s: float = 0.0  # seconds of all steps
    exchange_s: float = 0.0  # seconds that the last rank of each step spent in exchanges
    waiting_s: float = 0.0  # seconds in exchanges beyond these, as a mean over the ranks
    late: Mapping[tuple[int, str], Span] = field(default_factory=dict[tuple[int, str], Span])
    squares_s2: float = 0.0  # the sum of the squares of what ranks were late by
    uncertainty_s: float = 0.0  # the largest

    def __add__(self, other: "LateSteps") -> "LateSteps":
        late = dict(self.late)
        for key, span in other.late.items():
            late[key] = late.get(key, Span()) + span
        return LateSteps(
            num_steps=self.num_steps + other.num_steps,
            total_s=self.total_s + other.total_s,
            exchange_s=self.exchange_s + other.exchange_s,
            waiting_s=self.waiting_s + other.waiting_s,
            late=late,
            squares_s2=self.squares_s2 + other.squares_s2,
            uncertainty_s=max(self.uncertainty_s, other.uncertainty_s),
        )


def late_steps(times: StepTimes) -> LateSteps:
    """Return which rank was late in which of the steps, by how much, and in which span."""
    num_ranks, num_steps = times.arrived_s.shape
    steps = np.arange(num_steps)
    last = times.arrived_s.argmax(axis=0)
    is_other = np.arange(num_ranks)[:, None] != last  # [ranks, steps]
    others = np.where(is_other, times.arrived_s, np.nan)
    late_s = times.arrived_s[last, steps] - np.nanmedian(others, axis=0)
    # The others cannot have waited longer for it than they waited.
    others = np.where(is_other, times.exchange_s, np.nan)
    waited_s = np.nanmedian(others, axis=0) - times.exchange_s[last, steps]
    late_s = np.minimum(late_s, waited_s)
    others = np.where(is_other[:, :, None], times.own_s, np.nan)
    more_s = times.own_s[last, steps] - np.nanmedian(others, axis=0)  # [steps, spans]
    is_own = np.maximum(more_s, 0.0).sum(axis=1) >= EXPLAINED * late_s
    uncertainty_s = times.uncertainty_s[last, steps]
    is_late = is_own & (late_s > uncertainty_s) & (late_s > LEAST_SHARE * times.step_s)
    names = np.array(SPANS)[more_s.argmax(axis=1)]
    least_s = times.exchange_s.min(axis=0)
    late: dict[tuple[int, str], list[float]] = {}
    for step in np.flatnonzero(is_late):
        key = int(last[step]), str(names[step])
        late.setdefault(key, []).append(float(late_s[step]))
    return LateSteps(
        num_steps=num_steps,
        total_s=float(times.step_s.sum()),
        exchange_s=float(least_s.sum()),
        waiting_s=float((times.exchange_s.mean(axis=0) - least_s).sum()),
        late={key: Span.of(seconds) for key, seconds in late.items()},
        squares_s2=float((late_s[is_late] ** 2).sum()),
        uncertainty_s=float(uncertainty_s.max(initial=0.0)),
    )


def late_rank(steps: LateSteps, num_ranks: int) -> LateRank | None:
    """Return the rank for which the others wait most; None if it may be so by chance.

    If chance made a rank the last one of a step, each would be it equally often.
    """
    lost_s = np.zeros(num_ranks)
    counts = np.zeros(num_ranks)
    for (late, _), span in steps.late.items():
        lost_s[late] += span.total_s
        counts[late] += span.num_steps
    rank = int(lost_s.argmax())
    of_others_s = (lost_s.sum() - lost_s[rank]) / (num_ranks - 1)
    error_s = math.sqrt(steps.squares_s2 * (1 - 1 / num_ranks) / num_ranks)
    by_chance_s = lost_s.mean() + ERRORS * error_s
    least_s = max(TIMES * of_others_s, by_chance_s, LEAST_LOST * steps.total_s)
    if lost_s[rank] <= least_s:
        return None
    spans = {name: span.total_s for (late, name), span in steps.late.items() if late == rank}
    return LateRank(
        rank=rank,
        span=max(spans, key=spans.__getitem__),
        steps_share=float(counts[rank] / steps.num_steps),
        late_s=float(lost_s[rank] / counts[rank]),
        lost_share=float(lost_s[rank] / steps.total_s),
        uncertainty_s=steps.uncertainty_s,
    )
