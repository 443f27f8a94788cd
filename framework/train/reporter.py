"""The pace of a run, and reports of what a split came to."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from framework.contracts.span import RankReport, Span
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

    The ``identity`` of the training loader says how much of an epoch is left. The run draws its
    random numbers on ``device``.
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
        identity, epoch_left = self._identity, 0  # between two epochs
        if progress.epoch_step:
            done = progress.epoch_step * identity["batch_size"]
            if "steps" in identity:  # batches of several sizes, which come in any order
                done = identity["records"] * progress.epoch_step // identity["steps"]
            epoch_left = max(0, identity["records"] - done)
        report = Report(
            results.split,
            progress.step,
            epoch=progress.epoch_number,
            means=results.means,
            records_per_s=results.records_per_s,
            spans=results.spans,
            learning_rate=rate,
            epoch_left=epoch_left,
            left_s=step_s * (last_step - progress.step),
            skipped=progress.step - progress.scheduled,
            arrays=results.arrays,
            ranks=results.ranks,
        )
        if self.sinks:
            # A sink may draw random numbers, to choose an image for example. That must not change
            # the numbers that rank 0 trains with.
            with kept_generators(self._device):
                for sink in self.sinks:
                    sink.write(report)
        return report

    def flush(self) -> None:
        for sink in self.sinks:
            sink.flush()


@final
class TrainPace:
    """The time and the records of training. Validating and saving do not count."""

    def __init__(self) -> None:
        self.train_s = 0.0  # of this run, up to its last report
        self.num_records = 0.0  # that this run trained on, over all ranks
        self.before_s = 0.0  # before this run was resumed
        self._since = time.perf_counter()  # up to when it is counted
        self._paused_at: float | None = self._since

    @property
    def total_s(self) -> float:
        """Seconds of training up to now, over all parts of a resumed run."""
        now = self._paused_at or time.perf_counter()
        return self.before_s + self.train_s + now - self._since

    def start(self) -> None:
        self._since = time.perf_counter()
        self._paused_at = None

    def pause(self) -> None:
        self._paused_at = time.perf_counter()

    def go_on(self) -> None:
        """Leave out the time since ``pause``."""
        assert self._paused_at is not None
        self._since += time.perf_counter() - self._paused_at
        self._paused_at = None

    def lap(self, num_records: float) -> float:
        """Count the time since the last call, and its records. Return the records per second."""
        now = time.perf_counter()
        wall_s = now - self._since
        self._since = now
        self.train_s += wall_s
        self.num_records += num_records
        return num_records / wall_s
