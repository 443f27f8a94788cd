"""What the loader and the machine have to say of a report's steps is added to it, on its way to the sinks."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

from framework.contracts.loader import LoaderStats
from framework.contracts.training import Report, Sink

USAGE_EVERY_S = (
    1.0  # asking the system costs up to a millisecond, and what it says is of such a time anyway
)


@final
class MeasuredSink:
    """Hands training reports on to ``sinks``, with ``stats`` and ``usage`` in them, and sums up for the run's summary.

    ``start_step``: of the run. ``stages_s``: thread-seconds of the whole run; ``ready``: batches that lay ready, on average over its steps.
    ``warn`` is told of a sink that cannot write. What of ``usage`` is called ``peak_`` is a peak so far; all else is a mean since it was asked last.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        stats: Callable[[], LoaderStats],
        usage: Callable[[], Mapping[str, float]],
        warn: Callable[[str], None],
        start_step: int = 0,
    ) -> None:
        self._sinks, self._stats, self._usage, self._warn = sinks, stats, usage, warn
        self._failed: set[str] = set()
        self._step, self._asked_at = start_step, time.monotonic()
        self._used: Mapping[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._sums: dict[str, tuple[float, float]] = {}  # value times seconds, and seconds
        self._ready, self._ready_steps = 0.0, 0
        self.stages_s: dict[str, float] = {}
        self.depth = 0

    @property
    def ready(self) -> float | None:
        return self._ready / self._ready_steps if self._ready_steps else None

    def usage(self) -> dict[str, float]:
        """Of the whole run, up to now: means over time, and peaks."""
        self._ask()
        return {
            name: total / seconds for name, (total, seconds) in self._sums.items() if seconds
        } | self._peaks

    def write(self, report: Report) -> None:
        measured = self._measured(report) if report.split == "train" else report
        self._each(lambda sink: sink.write(measured))

    def flush(self) -> None:
        self._each(lambda sink: sink.flush())

    def close(self) -> None:
        self._each(lambda sink: sink.close())

    def _each(self, action: Callable[[Sink], None]) -> None:
        """A log that cannot be written is no reason to stop learning: it is said once."""
        for sink in self._sinks:
            name = type(sink).__name__
            try:
                action(sink)
            except OSError as error:
                if name not in self._failed:
                    self._warn(
                        f"warning: {name} cannot write: {error.strerror or error}; training goes on without it"
                    )
                self._failed.add(name)

    def _measured(self, report: Report) -> Report:
        num_steps, self._step = max(1, report.step - self._step), report.step
        stats = self._stats()
        self.depth = stats.depth
        for name, seconds in stats.stages_s.items():
            self.stages_s[name] = self.stages_s.get(name, 0.0) + seconds
        if stats.ready is not None:
            self._ready += stats.ready * num_steps
            self._ready_steps += num_steps
        per_step_s = {name: seconds / num_steps for name, seconds in stats.stages_s.items()}
        return replace(report, stages_s=per_step_s, ready=stats.ready, usage=self._newest_usage())

    def _newest_usage(self) -> Mapping[str, float]:
        if not self._used or time.monotonic() - self._asked_at > USAGE_EVERY_S:
            self._ask()
        return self._used

    def _ask(self) -> None:
        now = time.monotonic()
        seconds, self._asked_at, self._used = now - self._asked_at, now, self._usage()
        for name, value in self._used.items():
            if name.startswith("peak_"):
                self._peaks[name] = max(value, self._peaks.get(name, 0.0))
            else:
                before, before_s = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = before + value * seconds, before_s + seconds
