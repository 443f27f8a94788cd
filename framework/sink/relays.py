"""Sinks that pass reports on: with what was measured beside them, and without failing."""

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

from framework.contracts.loader import LoaderStats
from framework.contracts.training import Report, Sink
from framework.errors import ResourceError

# Measuring the usage takes up to a millisecond, and its values are means over about this time.
USAGE_EVERY_S = 1.0


@final
class MeasuredSink:
    """Adds measurements to training reports, and sums them up over the run.

    Args:
        sinks: Where the reports go. ``close`` leaves them open.
        stats: Returns how preparing batches went since the last call.
        usage: Returns the usage of the machine: values named ``peak_`` are peaks so far, all others
            are means since the last call.
        start_step: Step that the run starts from.
        slow: Returns what is known of slow records; called at the end of an epoch.
        tuning: Returns how records are read now, and what was decided since the last call.
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
        self._value_s: dict[str, float] = defaultdict(float)  # value times seconds
        self._seconds: dict[str, float] = defaultdict(float)
        self._ready = 0.0
        self._ready_steps = 0
        self._parts: dict[str, float] = defaultdict(float)
        self._wholes: dict[str, float] = defaultdict(float)
        self.stages_s: dict[str, float] = defaultdict(float)  # thread-seconds of the whole run
        self.depth = 0  # the most batches that the loader's queue holds

    @property
    def content(self) -> dict[str, float]:
        """Shares of what the batches of the whole run held, by name."""
        return {name: self._parts[name] / whole for name, whole in self._wholes.items() if whole}

    @property
    def ready(self) -> float | None:
        """Batches that were ready when one was requested, on average over the run's steps."""
        return self._ready / self._ready_steps if self._ready_steps else None

    def usage(self) -> dict[str, float]:
        """Return the usage of the whole run up to now: means over time, and peaks."""
        self._ask()
        means = {name: self._value_s[name] / s for name, s in self._seconds.items() if s}
        return means | self._peaks

    def write(self, report: Report) -> None:
        if report.split == "train":
            report = self._measured(report)
        for sink in self._sinks:
            sink.write(report)

    def flush(self) -> None:
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        pass

    def _measured(self, report: Report) -> Report:
        num_steps = max(1, report.step - self._step)
        self._step = report.step
        stats = self._stats()
        self.depth = stats.depth
        for name, seconds in stats.stages_s.items():
            self.stages_s[name] += seconds
        for name, (part, whole) in stats.content.items():
            self._parts[name] += part
            self._wholes[name] += whole
        if stats.ready is not None:
            self._ready += stats.ready * num_steps
            self._ready_steps += num_steps
        if not self._used or time.monotonic() - self._asked_at > USAGE_EVERY_S:
            self._ask()
        return replace(
            report,
            slow_records=self._slow() if report.epoch_left == 0 else {},
            tuning=self._tuning(),
            stages_s={name: seconds / num_steps for name, seconds in stats.stages_s.items()},
            ready=stats.ready,
            usage=self._used,
            content={name: part / all_ for name, (part, all_) in stats.content.items() if all_},
        )

    def _ask(self) -> None:
        seconds = time.monotonic() - self._asked_at
        self._asked_at += seconds
        self._used = self._usage()
        for name, value in self._used.items():
            if name.startswith("peak_"):
                self._peaks[name] = max(value, self._peaks.get(name, 0.0))
            else:
                self._value_s[name] += value * seconds
                self._seconds[name] += seconds


@final
class TolerantSink:
    """Passes everything on, and warns once of an OSError or ResourceError, such as a full disk."""

    def __init__(self, sink: Sink, warn: Callable[[str], None]) -> None:
        self._sink = sink
        self._warn = warn
        self._has_failed = False

    def write(self, report: Report) -> None:
        with self._tolerant():
            self._sink.write(report)

    def flush(self) -> None:
        with self._tolerant():
            self._sink.flush()

    def close(self) -> None:
        with self._tolerant():
            self._sink.close()

    @contextmanager
    def _tolerant(self) -> Generator[None]:
        try:
            yield
        except (OSError, ResourceError) as error:
            cause = error.__cause__ or error
            reason = cause.strerror if isinstance(cause, OSError) else None
            if not self._has_failed:
                self._has_failed = True
                what = f"{type(self._sink).__name__} cannot write: {reason or error}"
                self._warn(f"warning: {what}; training continues without it")
