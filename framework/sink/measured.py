"""Add to each training report what the loader and the machine measured during its steps."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from framework.contracts.data import Content
from framework.contracts.loader import LoaderStats
from framework.contracts.training import Report, Sink

# Measuring the usage takes up to a millisecond, and its values are means over about this time.
USAGE_EVERY_S = 1.0


@final
class MeasuredSink:
    """Passes reports on to ``sinks`` with ``stats`` and ``usage``, and sums them up over the run.

    Args:
        sinks: Where the reports go.
        stats: Returns how preparing batches went since the last call.
        usage: Returns the usage of the machine: values named ``peak_`` are peaks so far, all others
            are means since the last call.
        start_step: Step that the run starts from.
        slow: Returns what is known of slow records; called at the end of an epoch.
        tuning: Returns how records are read now, and what was decided since the last call.

    Attributes:
        stages_s: Thread-seconds of the whole run, by stage.
        depth: The most batches that the loader's queue holds.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        stats: Callable[[], LoaderStats],
        usage: Callable[[], Mapping[str, float]],
        start_step: int = 0,
        slow: Callable[[], Mapping[str, Any]] = dict[str, Any],
        tuning: Callable[[], Mapping[str, Any]] = dict[str, Any],
    ) -> None:
        self._sinks = sinks
        self._stats = stats
        self._usage = usage
        self._slow = slow
        self._tuning = tuning
        self._step = start_step
        self._asked_at = time.monotonic()
        self._used: Mapping[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._sums: dict[str, tuple[float, float]] = {}  # value times seconds, and seconds
        self._ready = 0.0
        self._ready_steps = 0
        self.stages_s: dict[str, float] = {}
        self.depth = 0
        self._content: dict[str, tuple[float, float]] = {}

    @property
    def content(self) -> dict[str, float]:
        """Shares of what the batches of the whole run held, by name."""
        return _shares(self._content)

    @property
    def ready(self) -> float | None:
        """Batches that were ready when one was requested, on average over the run's steps."""
        return self._ready / self._ready_steps if self._ready_steps else None

    def usage(self) -> dict[str, float]:
        """Return the usage of the whole run up to now: means over time, and peaks."""
        self._ask()
        sums = self._sums.items()
        return {name: total / seconds for name, (total, seconds) in sums if seconds} | self._peaks

    def write(self, report: Report) -> None:
        if report.split == "train":
            report = self._measured(report)
        for sink in self._sinks:
            sink.write(report)

    def flush(self) -> None:
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Do nothing: ``open_sinks`` closes the sinks."""

    def _measured(self, report: Report) -> Report:
        num_steps = max(1, report.step - self._step)
        self._step = report.step
        stats = self._stats()
        self.depth = stats.depth
        for name, seconds in stats.stages_s.items():
            self.stages_s[name] = self.stages_s.get(name, 0.0) + seconds
        for name, (part, whole) in stats.content.items():
            old_part, old_whole = self._content.get(name, (0.0, 0.0))
            self._content[name] = (old_part + part, old_whole + whole)
        if stats.ready is not None:
            self._ready += stats.ready * num_steps
            self._ready_steps += num_steps
        if not self._used or time.monotonic() - self._asked_at > USAGE_EVERY_S:
            self._ask()
        per_step_s = {name: seconds / num_steps for name, seconds in stats.stages_s.items()}
        return replace(
            report,
            slow_records=self._slow() if report.epoch_left == 0 else {},
            tuning=self._tuning(),
            stages_s=per_step_s,
            ready=stats.ready,
            usage=self._used,
            content=_shares(stats.content),
        )

    def _ask(self) -> None:
        now = time.monotonic()
        seconds = now - self._asked_at
        self._asked_at = now
        self._used = self._usage()
        for name, value in self._used.items():
            if name.startswith("peak_"):
                self._peaks[name] = max(value, self._peaks.get(name, 0.0))
            else:
                total, total_s = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = (total + value * seconds, total_s + seconds)


def _shares(content: Content) -> dict[str, float]:
    return {name: part / whole for name, (part, whole) in content.items() if whole}
