"""Gather at a report what all ranks measured: their spans, and who made whom wait.

A step ends with an exchange of gradients, in which all ranks wait for the last one. That rank is
late if its own work took longer than that of the others, who waited as long.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from framework.contracts.loader import Clock, KnowsOwnWork
from framework.contracts.parallel import Parallel
from framework.contracts.span import ALL_SPANS, IDLE, SPANS, LateRank, RankReport, RankSpan, Span

Array = NDArray[np.float64]

NAMES = (*ALL_SPANS, IDLE)
COLUMNS = 2 + len(SPANS)  # of a row of ``KnowsOwnWork.own_work``
LEAST_SHARE = 0.01  # of a step; coming later by less does not count
# A rank is named if the others wait for it this many times as long as for another rank on average,
# for this share of the run at least, and longer than chance explains by so many standard errors.
TIMES = 2.0
LEAST_LOST = 0.01
ERRORS = 3.0


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

    def __add__(self, other: "LateSteps") -> "LateSteps":
        late = dict(self.late)
        for key, span in other.late.items():
            late[key] = late.get(key, Span()) + span
        return LateSteps(
            self.num_steps + other.num_steps,
            self.total_s + other.total_s,
            self.exchange_s + other.exchange_s,
            self.waiting_s + other.waiting_s,
            late,
            self.squares_s2 + other.squares_s2,
        )


@final
class RankWatch:
    """The measurements of all ranks since the start. Every rank has one, and rank 0 reads it."""

    def __init__(self, clock: Clock, parallel: Parallel) -> None:
        self._parallel = parallel
        self._clock: KnowsOwnWork | None = None
        if parallel.world_size > 1 and isinstance(clock, KnowsOwnWork):
            self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Start again, because the first steps are not like the others."""
        self._totals_s: Array = np.zeros((self._parallel.world_size, len(NAMES), 2))
        self.steps = LateSteps()  # of this run, on rank 0

    @property
    def whole(self) -> RankReport | None:
        """What rank 0 knows of all steps of this run; None if there is one rank."""
        if self._clock is None:
            return None
        return self._report(self._totals_s, self.steps)

    def take(self, spans: Mapping[str, Span]) -> RankReport | None:
        """Gather what the ranks measured since the last report. All ranks call it together.

        Only rank 0 gets the result.
        """
        if self._clock is None:
            return None
        own: list[float] = []
        for name in NAMES:
            span = spans.get(name, Span())
            own += (span.total_s, span.num_steps)
        header = len(own)
        for row in self._clock.own_work():
            own += row
        gathered = self._parallel.gather(torch.tensor(own, dtype=torch.float64))
        if self._parallel.rank:
            return None
        blocks = [block.numpy() for block in gathered]
        totals_s = np.stack([block[:header].reshape(-1, 2) for block in blocks])
        rows = [block[header:].reshape(-1, COLUMNS) for block in blocks]
        numbers = rows[0][:, 0]  # of the steps that all ranks have
        for more in rows[1:]:
            numbers = np.intersect1d(numbers, more[:, 0])
        late = LateSteps()
        if len(numbers):
            every = np.stack([row[np.isin(row[:, 0], numbers)] for row in rows])
            late = late_steps(every[:, :, 2:], every[:, :, 1])
        self._totals_s = self._totals_s + totals_s
        self.steps = self.steps + late
        return self._report(totals_s, late)

    def _report(self, totals_s: Array, late: LateSteps) -> RankReport:
        # Not every step has every span: on GPUs, some parallels only exchange flags now and then.
        num_steps = totals_s[:, [NAMES.index("optimizer")], 1]
        num_steps = np.where(num_steps, num_steps, totals_s[:, :, 1])
        means_s = totals_s[:, :, 0] / np.maximum(num_steps, 1.0)
        spans: dict[str, RankSpan] = {}
        for number, name in enumerate(NAMES):
            if totals_s[:, number, 1].any():
                own_s = means_s[:, number]
                least, middle, most = own_s.min(), np.median(own_s), own_s.max()
                slowest = int(own_s.argmax())
                spans[name] = RankSpan(float(least), float(middle), float(most), slowest)
        return RankReport(len(totals_s), spans, late_rank(late, len(totals_s)))


def late_steps(own_s: Array, exchange_s: Array) -> LateSteps:
    """Return which rank was late in which of the steps, by how much, and in which span.

    Args:
        own_s: Seconds of own work, float64 [ranks, steps, len(SPANS)].
        exchange_s: Seconds in exchanges, float64 [ranks, steps].
    """
    num_ranks, num_steps = exchange_s.shape
    steps = np.arange(num_steps)
    works_s = own_s.sum(axis=2)
    step_s = (works_s + exchange_s).mean(axis=0)
    last = works_s.argmax(axis=0)
    is_last = np.arange(num_ranks)[:, None] == last  # [ranks, steps]

    def more_than_others(values: Array) -> Array:
        """Return what the last rank has more than the median of the others, [steps, ...]."""
        mask = is_last if values.ndim == 2 else is_last[:, :, None]
        return values[last, steps] - np.nanmedian(np.where(mask, np.nan, values), axis=0)

    # The others cannot have waited longer for it than they waited.
    late_s = np.minimum(more_than_others(works_s), -more_than_others(exchange_s))
    is_late = late_s > LEAST_SHARE * step_s
    names = np.array(SPANS)[more_than_others(own_s).argmax(axis=1)]
    least_s = exchange_s.min(axis=0)
    late: dict[tuple[int, str], list[float]] = {}
    for step in np.flatnonzero(is_late):
        key = int(last[step]), str(names[step])
        late.setdefault(key, []).append(float(late_s[step]))
    return LateSteps(
        num_steps=num_steps,
        total_s=float(step_s.sum()),
        exchange_s=float(least_s.sum()),
        waiting_s=float((exchange_s.mean(axis=0) - least_s).sum()),
        late={key: Span.of(seconds) for key, seconds in late.items()},
        squares_s2=float((late_s[is_late] ** 2).sum()),
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
    )
