"""How the clocks of hosts differ, estimated from a few exchanges among the ranks."""

from time import perf_counter
from typing import final

import numpy as np
import torch

from framework.contracts.parallel import Parallel
from framework.train.lateness import Array, ClockOffsets, clock_offsets

ROUNDS = 8  # of a comparison, which takes a millisecond among hosts that are near
COMPARED_S = 10.0  # the shortest time between two comparisons
DRIFT = 50e-6  # seconds per second by which the clocks of two hosts may drift apart


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
