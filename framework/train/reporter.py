"""Make reports of what a split came to, and write them to the sinks."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from framework.contracts.rank_spans import RankReport
from framework.contracts.span import Span
from framework.contracts.training import Report, Sink
from framework.system.rng import kept_generators
from framework.train.metrics import Progress


class SplitResults(NamedTuple):
    """What the records of a split came to."""

    split: str  # ``train``, ``val``, or ``val.NAME`` of one of several validation sets
    means: dict[str, float]
    arrays: Mapping[str, Tensor]
    records_per_s: float
    spans: Mapping[str, Span]
    ranks: RankReport | None = None


@final
class Reporter:
    """Writes reports. Only rank 0 has sinks.

    Args:
        identity: The training loader's, from which follows how much of an epoch is left.
        device: Where the run draws its random numbers.
    """

    def __init__(self, identity: Mapping[str, int], device: torch.device) -> None:
        self._identity = identity
        self._device = device
        self.sinks: Sequence[Sink] = ()
        self._began_at = time.perf_counter()
        self._first_step = 0

    def begin(self, sinks: Sequence[Sink], step: int) -> None:
        """Write to these sinks. The time that is left is reckoned from ``step`` on."""
        self.sinks = sinks
        self._began_at = time.perf_counter()
        self._first_step = step

    def write(
        self, results: SplitResults, progress: Progress, last_step: int, rate: float
    ) -> Report:
        """Write a report, and return it. ``rate`` is the newest learning rate."""
        elapsed_s = time.perf_counter() - self._began_at
        step_s = elapsed_s / max(1, progress.step - self._first_step)
        report = Report(
            results.split,
            progress.step,
            epoch=progress.epoch_number,
            means=results.means,
            records_per_s=results.records_per_s,
            spans=results.spans,
            learning_rate=rate,
            epoch_left=self._epoch_left(progress),
            left_s=step_s * (last_step - progress.step),
            skipped=progress.step - progress.scheduled,
            arrays=results.arrays,
            ranks=results.ranks,
        )
        # A sink may draw random numbers, to choose an image for example. That must not change the
        # numbers that rank 0 trains with.
        with kept_generators(self._device):
            for sink in self.sinks:
                sink.write(report)
        return report

    def flush(self) -> None:
        for sink in self.sinks:
            sink.flush()

    def _epoch_left(self, progress: Progress) -> int:
        """Return the records until the end of the epoch; 0 between two epochs."""
        identity = self._identity
        if not progress.epoch_step:
            return 0
        done = progress.epoch_step * identity["batch_size"]
        if "steps" in identity:  # batches of several sizes, which come in any order
            done = identity["records"] * progress.epoch_step // identity["steps"]
        return max(0, identity["records"] - done)
