"""How long the stages of reading take: read, decode, transform, collate; in thread-seconds. ``contracts.Source.stages`` says what each means."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import final


@final
class Stopwatch:
    """One thread's work on one slice of a batch. The time between two marks belongs to the second one's stage, so nothing is left over.
    0.2 us a mark.
    """

    def __init__(self) -> None:
        self.stages_s: dict[str, float] = {}
        self._last = perf_counter()

    def mark(self, stage: str) -> None:
        now = perf_counter()
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + now - self._last
        self._last = now


@final
class Stages:
    """The sums over batches: ``sums_s``, to be added to. One thread at a time adds, whoever takes the batches; another may ask.

    Sums only grow, so that nothing is lost between the two without a lock, which would cost as much as all the rest.
    """

    def __init__(self) -> None:
        self.sums_s: defaultdict[str, float] = defaultdict(float)
        self._told_s: dict[str, float] = {}

    def add_slices(self, slices_s: Iterable[Mapping[str, float]]) -> None:
        """A batch's seconds, slice by slice."""
        for stages_s in slices_s:
            for stage, seconds in stages_s.items():
                self.sums_s[stage] += seconds

    def take(self) -> dict[str, float]:
        """Seconds per stage since this was called last; a stage that took none is left out."""
        before_s, self._told_s = self._told_s, dict(self.sums_s)
        since_s = {
            stage: seconds - before_s.get(stage, 0.0) for stage, seconds in self._told_s.items()
        }
        return {stage: seconds for stage, seconds in since_s.items() if seconds > 0.0}
