"""Gather at a report what all ranks measured: their spans, and who made whom wait."""

from collections.abc import Mapping
from time import perf_counter
from typing import final

import numpy as np
import torch

from framework.contracts.loader import Clock, KnowsOwnWork
from framework.contracts.parallel import Parallel
from framework.contracts.rank_spans import RankReport, RankSpan
from framework.contracts.span import ALL_SPANS, IDLE, SPANS, Span
from framework.train.lateness import (
    Array,
    ClockOffsets,
    LateSteps,
    StepTimes,
    clock_offsets,
    late_rank,
    late_steps,
    same_steps,
)

NAMES = (*ALL_SPANS, IDLE)
COLUMNS = 3 + len(SPANS)  # of a row of ``KnowsOwnWork.own_work``
ROUNDS = 8  # of a comparison of clocks, which takes a millisecond among hosts that are near
COMPARED_S = 10.0  # the shortest time between two comparisons
DRIFT = 50e-6  # seconds per second by which the clocks of two hosts may drift apart
HEADER = 2 + 2 * len(NAMES)  # the clock, whether clocks are compared, and each span's sum and steps


@final
class RankWatch:
    """The measurements of all ranks since the start. Every rank has one, and rank 0 reads it.

    Args:
        clock: This rank's.
        parallel: The ranks.
    """

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
        late = self._late_steps([block[HEADER:].reshape(-1, COLUMNS) for block in blocks])
        self._totals_s = self._totals_s + totals_s
        self.steps = self.steps + late
        return self._report(totals_s, late)

    def _late_steps(self, rows: list[Array]) -> LateSteps:
        every = np.stack(same_steps(rows))  # [ranks, steps, COLUMNS]
        if not every.shape[1]:
            return LateSteps()
        arrived_s = every[:, :, 1]
        uncertainty_s = np.zeros_like(arrived_s)
        if self._clocks.are_known:
            offsets_s, uncertainty_s = self._clocks.at(arrived_s)
            arrived_s = arrived_s - offsets_s
            uncertainty_s = uncertainty_s + np.median(uncertainty_s, axis=0)
        return late_steps(StepTimes(arrived_s, every[:, :, 3:], every[:, :, 2], uncertainty_s))

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


@final
class HostClocks:
    """The offsets of all ranks' clocks to that of rank 0, compared now and then."""

    def __init__(self) -> None:
        self._times_s: list[float] = []  # of the newest two comparisons, by rank 0's clock
        self._offsets: list[ClockOffsets] = []

    def are_due(self) -> bool:
        """Return whether it is time to compare the clocks."""
        return not self._times_s or perf_counter() - self._times_s[-1] > COMPARED_S

    @property
    def are_known(self) -> bool:
        return bool(self._times_s)

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
        self._offsets = [*self._offsets[-1:], clock_offsets(every[:, 0], every[:, 1])]
        self._times_s = [*self._times_s[-1:], float(every[0, 1, -1])]

    def at(self, times_s: Array) -> tuple[Array, Array]:
        """Return the offsets at certain times, and by how much they may be wrong.

        Between two comparisons a clock drifts evenly. Outside of them it may drift anyhow.

        Args:
            times_s: By the clock of each rank: float64 [ranks, steps].
        """
        known_s = np.array(self._times_s)
        newest = self._offsets[-1]
        uncertainty_s = np.max([own.uncertainty_s for own in self._offsets], axis=0)
        near_s = times_s - newest.offsets_s[:, None]  # by rank 0's clock, well enough
        outside_s = np.maximum(near_s - known_s[-1], known_s[0] - near_s).clip(min=0.0)
        drifts = np.ones(len(times_s))
        drifts[0] = 0.0
        offsets_s = np.stack(
            [
                np.interp(near_s[rank], known_s, [own.offsets_s[rank] for own in self._offsets])
                for rank in range(len(times_s))
            ]
        )
        return offsets_s, uncertainty_s[:, None] + DRIFT * drifts[:, None] * outside_s
