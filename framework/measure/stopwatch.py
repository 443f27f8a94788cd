"""Thread-seconds of the stages of reading: read, decode, transform, collate."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import final


@final
class Stopwatch:
    """One thread's work on one slice of a batch. A mark takes 0.2 us."""

    def __init__(self) -> None:
        self.stages_s: dict[str, float] = {}
        self._last = perf_counter()

    def mark(self, stage: str) -> float:
        """Count the seconds since the last mark for ``stage``, and return them."""
        now = perf_counter()
        seconds = now - self._last
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + seconds
        self._last = now
        return seconds


@final
class Stages:
    """The seconds of all batches by stage, ``sums_s``.

    One thread at a time adds to them, while another may take. Sums only grow, so that nothing is
    lost without a lock, which would cost as much as all the rest.
    """

    def __init__(self) -> None:
        self.sums_s: defaultdict[str, float] = defaultdict(float)
        self._taken_s: dict[str, float] = {}

    def add_slices(self, slices_s: Iterable[Mapping[str, float]]) -> None:
        for stages_s in slices_s:
            for stage, seconds in stages_s.items():
                self.sums_s[stage] += seconds

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call, without stages that took none."""
        before_s = self._taken_s
        self._taken_s = dict(self.sums_s)
        since_s = {stage: s - before_s.get(stage, 0.0) for stage, s in self._taken_s.items()}
        return {stage: seconds for stage, seconds in since_s.items() if seconds > 0.0}
