"""Gather at a report what all ranks measured: their spans, and who made whom wait.

A step ends with an exchange of gradients, in which all ranks wait for the last one. The rank that
comes last is late if its own work took longer than that of the others. Time inside an exchange is
nobody's own work.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from framework.contracts.loader import Clock, KnowsOwnWork
from framework.contracts.parallel import Parallel
from framework.contracts.span import ALL_SPANS, IDLE, SPANS, LateRank, RankReport, RankSpan, Span

Array = NDArray[np.float64]

NAMES = (*ALL_SPANS, IDLE)
COLUMNS = 3 + len(SPANS)  # of a row of ``KnowsOwnWork.own_work``
ROUNDS = 8  # of a comparison of clocks, which takes a millisecond among hosts that are near
COMPARED_S = 10.0  # the shortest time between two comparisons
DRIFT = 50e-6  # seconds per second by which the clocks of two hosts may drift apart
HEADER = 2 + 2 * len(NAMES)  # the clock, whether clocks are compared, and each span's sum and steps
LEAST_SHARE = 0.01  # of a step; coming later by less does not count
EXPLAINED = 0.5  # the share of its lateness that a rank's own work must explain
# A rank is named if the others wait for it this many times as long as for another rank on average,
# for this share of the run at least, and longer than chance explains by so many standard errors.
TIMES = 2.0
LEAST_LOST = 0.01
ERRORS = 3.0


@final
class RankWatch:
    """The measurements of all ranks since the start. Every rank has one, and rank 0 reads it."""

    def __init__(self, clock: Clock, parallel: Parallel) -> None:
        self._parallel = parallel
        self._clock: KnowsOwnWork | None = None
        if parallel.world_size > 1 and isinstance(clock, KnowsOwnWork):
            self._clock = clock
        self._clocks = HostClocks()
        self._totals_s: Array = np.zeros((parallel.world_size, len(NAMES), 2))
        self.steps = LateSteps()  # of this run, on rank 0

    @property
    def whole(self) -> RankReport | None:
        """What rank 0 knows of all steps of this run; None if there is one rank."""
        if self._clock is None:
            return None
        return self._report(self._totals_s, self.steps)

    def forget(self) -> None:
        """Start again, because the first steps are not like the others."""
        self._totals_s = np.zeros_like(self._totals_s)
        self.steps = LateSteps()

    def take(self, spans: Mapping[str, Span]) -> RankReport | None:
        """Gather what the ranks measured since the last report. All ranks call it together.

        Only rank 0 gets the result.
        """
        if self._clock is None:
            return None
        own = [self._clock.time_base, float(self._clocks.are_due())]
        for name in NAMES:
            span = spans.get(name, Span())
            own += (span.total_s, span.num_steps)
        for row in self._clock.own_work():
            own += row
        gathered = self._parallel.gather(torch.tensor(own, dtype=torch.float64))
        blocks = [block.numpy() for block in gathered]
        # Ranks of one host share its clock, and devices have no time that could be compared.
        if blocks[0][1] and len({block[0] for block in blocks}) > 1:
            self._clocks.compare(self._parallel)
        if self._parallel.rank:
            return None
        totals_s = np.stack([block[2:HEADER].reshape(-1, 2) for block in blocks])
        rows = same_steps([block[HEADER:].reshape(-1, COLUMNS) for block in blocks])
        every, late = np.stack(rows), LateSteps()  # [ranks, steps, COLUMNS]
        if every.shape[1]:
            offsets_s, uncertainty_s = self._clocks.at(every[:, :, 1])
            uncertainty_s = uncertainty_s + np.median(uncertainty_s, axis=0)
            arrived_s = every[:, :, 1] - offsets_s
            times = StepTimes(arrived_s, every[:, :, 3:], every[:, :, 2], uncertainty_s)
            late = late_steps(times)
        self._totals_s = self._totals_s + totals_s
        self.steps = self.steps + late
        return self._report(totals_s, late)

    def _report(self, totals_s: Array, late: "LateSteps") -> RankReport:
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


@final
class HostClocks:
    """The offsets of all ranks' clocks to that of rank 0, compared now and then."""

    def __init__(self) -> None:
        self._compared_s = -math.inf  # by rank 0's clock
        self._newest: ClockOffsets | None = None

    def are_due(self) -> bool:
        return perf_counter() - self._compared_s > COMPARED_S

    def compare(self, parallel: Parallel) -> None:
        """Compare the clocks. All ranks call it together."""
        nothing = torch.zeros(1, dtype=torch.float64)
        starts_s: list[float] = []
        ends_s: list[float] = []
        for _ in range(ROUNDS):
            starts_s.append(perf_counter())
            parallel.total(nothing)  # no rank has the sum before every rank has given its part
            ends_s.append(perf_counter())
        own = torch.tensor([*starts_s, *ends_s], dtype=torch.float64)
        every = torch.stack(parallel.gather(own)).numpy().reshape(-1, 2, ROUNDS)
        self._newest = clock_offsets(every[:, 0], every[:, 1])
        self._compared_s = float(every[0, 1, -1])

    def at(self, times_s: Array) -> tuple[Array, Array]:
        """Return the offsets at certain times, and by how much they may be wrong.

        Clocks may drift from the newest comparison on, and before it. ``times_s`` are by the clock
        of each rank: float64 [ranks, steps].
        """
        if self._newest is None:
            return np.zeros_like(times_s), np.zeros_like(times_s)
        offsets_s = np.broadcast_to(self._newest.offsets_s[:, None], times_s.shape)
        away_s = np.abs(times_s - offsets_s - self._compared_s)
        away_s[0] = 0.0  # rank 0's own clock does not drift from itself
        return offsets_s, self._newest.uncertainty_s[:, None] + DRIFT * away_s


class ClockOffsets(NamedTuple):
    """By how much the clocks of ranks are ahead of rank 0's."""

    offsets_s: Array  # float64 [ranks]
    uncertainty_s: Array  # the most by which each may be wrong, float64 [ranks]


def clock_offsets(starts_s: Array, ends_s: Array) -> ClockOffsets:
    """Return the offsets of clocks from rounds in which no rank ends before every rank has begun.

    So in each round a rank's end is later than rank 0's start, and its start is earlier than rank
    0's end. The tightest of these bounds over all rounds hold the offset. Starts and ends are by
    the clock of each rank: float64 [ranks, rounds].

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

    All arrays are float64 [ranks, steps], and ``own_s`` also has a dimension of ``len(SPANS)``.
    """

    arrived_s: Array  # when each rank came to the exchange of gradients, by rank 0's clock
    own_s: Array  # seconds of own work before it
    exchange_s: Array  # seconds in exchanges
    uncertainty_s: Array  # how wrong the difference to another rank's arrival may be

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
            self.num_steps + other.num_steps,
            self.total_s + other.total_s,
            self.exchange_s + other.exchange_s,
            self.waiting_s + other.waiting_s,
            late,
            self.squares_s2 + other.squares_s2,
            max(self.uncertainty_s, other.uncertainty_s),
        )


def late_steps(times: StepTimes) -> LateSteps:
    """Return which rank was late in which of the steps, by how much, and in which span."""
    num_ranks, num_steps = times.arrived_s.shape
    steps = np.arange(num_steps)
    last = times.arrived_s.argmax(axis=0)
    is_last = np.arange(num_ranks)[:, None] == last  # [ranks, steps]

    def more_than_others(values: Array) -> Array:
        """Return what the last rank has more than the median of the others, [steps, ...]."""
        mask = is_last if values.ndim == 2 else is_last[:, :, None]
        return values[last, steps] - np.nanmedian(np.where(mask, np.nan, values), axis=0)

    late_s = more_than_others(times.arrived_s)
    # The others cannot have waited longer for it than they waited.
    late_s = np.minimum(late_s, -more_than_others(times.exchange_s))
    more_s = more_than_others(times.own_s)  # [steps, spans]
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
