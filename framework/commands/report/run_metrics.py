"""Read curves, rates and spans from ``metrics.jsonl``, whatever a killed run left at its end."""

import math
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from framework.commands.report.recorded_run import MetricCurve, RecordedSpan
from framework.contracts.span import ALL_SPANS, IDLE, waiting_share
from framework.system.json_values import (
    duration,
    lines_of,
    mapping,
    number,
    positive,
    shown,
)

NO_METRIC = {"step", "epoch", "split", "lr", "records_per_s"}
# Curves of a run with ``workers.num=auto``, beside its metrics.
WORKERS = "workers (auto)"
WAITING = "waiting (auto)"
UNITS = ("_s", "_bytes", "_share", "_count")  # endings of measured figures, which are no metrics
MOST = 600  # points of a curve that are all drawn


class Metrics(NamedTuple):
    """The contents of a log. A run that is killed while it writes leaves one damaged line."""

    curves: dict[tuple[str, str], MetricCurve]  # by (split, metric)
    rates: tuple[float, ...]  # records per second of each training report
    spans: dict[str, RecordedSpan]  # means over all training steps
    last_step: int
    num_bad: int  # damaged lines
    slow: dict[str, Any]  # the newest block about slow records


def read_metrics(path: Path, batch_size: float | None = None) -> Metrics:
    """Read a log; a missing file is an empty log. ``batch_size`` is for logs without spans."""
    reader = _Reader(batch_size)
    with suppress(OSError):
        for line in lines_of(path):
            reader.take(line)
    return Metrics(
        curves={(shown(s), shown(n)): _curve(each) for (s, n), each in reader.points.items()},
        rates=tuple(reader.rates),
        spans={n: RecordedSpan(s / reader.num_steps) for n, s in reader.totals_s.items()},
        last_step=int(reader.last_step),
        num_bad=reader.num_bad,
        slow=reader.slow,
    )


@final
class _Reader:
    """Collects the numbers of a log line by line."""

    def __init__(self, batch_size: float | None) -> None:
        self.batch_size = batch_size
        self.points: dict[tuple[str, str], array[float]] = {}  # step, seconds, value; 24 bytes
        self.names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.rates = array("d")
        self.totals_s: dict[str, float] = {}
        self.num_steps = self.last_step = self.seconds = 0.0
        self.num_bad = 0
        self.slow: dict[str, Any] = {}

    def take(self, line: dict[str, Any]) -> None:
        step = number(line.get("step"))
        split = line.get("split")
        if step is None or not 0 <= step < 1 << 53 or not isinstance(split, str):
            self.num_bad += 1
            return
        if split == "train":
            self._advance(step, line)
            self.slow = mapping(line.get("slow_records")) or self.slow
            if "tuning" in line:
                self._take_tuning(step, line)
        keys = tuple(line)
        if keys not in self.names:
            self.names[keys] = tuple(_metric_names(keys))
        self._add(step, split, {name: number(line[name]) for name in self.names[keys]})

    def _take_tuning(self, step: float, line: dict[str, Any]) -> None:
        values = {
            WORKERS: number(mapping(line["tuning"]).get("num_workers")),
            WAITING: waiting_share(_known_spans(line)),
        }
        self._add(step, "train", values)

    def _add(self, step: float, split: str, values: Mapping[str, float | None]) -> None:
        """Add a point to the curve of each value that is known."""
        for name, value in values.items():
            if value is not None:
                points = self.points.setdefault((split, name), array("d"))
                points.extend((step, self.seconds, value))

    def _advance(self, step: float, line: dict[str, Any]) -> None:
        """Add the time of the steps since the last report."""
        steps = step - self.last_step
        self.last_step = step
        rate = positive(line.get("records_per_s"))
        if rate is not None:
            self.rates.append(rate)
        if steps <= 0:  # the run was resumed from an earlier step: these steps are counted
            return
        self.num_steps += steps
        spans_s = _known_spans(line)
        for name, span_s in spans_s.items():
            self.totals_s[name] = self.totals_s.get(name, 0.0) + span_s * steps
        self.seconds += steps * self._step_s(spans_s, rate)

    def _step_s(self, spans_s: Mapping[str, float], rate: float | None) -> float:
        """Return the time of a step: the sum of its spans, or without spans by the rate."""
        counted_s = dict(spans_s)
        if IDLE in counted_s:
            counted_s.pop("wait", None)  # the host waits while the device works
        by_rate_s = (self.batch_size or math.nan) / (rate or math.nan)
        return math.fsum(counted_s.values()) or by_rate_s


def _known_spans(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of each span that a line has."""
    spans_s = {name: duration(line.get(f"{name}_s")) for name in (*ALL_SPANS, IDLE)}
    return {name: span_s for name, span_s in spans_s.items() if span_s is not None}


def _metric_names(keys: tuple[str, ...]) -> Iterator[str]:
    """Yield the loss and the metrics of a line, whose keys stand between ``split`` and ``lr``."""
    start = keys.index("split") + 1
    stop = (*keys, "lr").index("lr", start)
    return (name for name in keys[start:stop] if name not in NO_METRIC and not name.endswith(UNITS))


def _curve(points: "array[float]") -> MetricCurve:
    """Sort by step. A resumed run may report a step twice: the later line counts."""
    steps, seconds, values = np.frombuffer(points).reshape(-1, 3).T.copy()
    if bool(np.all(np.diff(steps) > 0)):
        return MetricCurve(steps, seconds, values)
    _, last = np.unique(steps[::-1], return_index=True)
    kept = len(steps) - 1 - last
    return MetricCurve(steps[kept], np.maximum.accumulate(seconds[kept]), values[kept])


def columns_of(most: int) -> int:
    """Return the columns of a thinned curve, whose means and ends are about ``most`` numbers."""
    return max(1, 2 * most // 5)


class Drawn(NamedTuple):
    """The points of a curve that are drawn: all of them, or a mean and two ends per column."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None  # None if every point is drawn
    high: np.ndarray | None


def thinned(x: np.ndarray, y: np.ndarray, most: int = MOST) -> Drawn:
    """Return every finite point, or columns of equal width if there are more than ``most``.

    ``x`` must not decrease. Every point lies between the least and the greatest of its column.
    """
    finite = np.isfinite(x) & np.isfinite(y)
    x = x[finite]
    y = y[finite]
    if len(x) <= most or x[0] == x[-1]:
        return Drawn(x, y, None, None)
    edges = np.linspace(x[0], x[-1], columns_of(most) + 1)
    # An empty column starts at the same point as the next column, so ``unique`` drops it.
    starts = np.unique(np.searchsorted(x, edges[:-1], side="left"))
    counts = np.diff([*starts, len(x)])
    mean_x = np.add.reduceat(x, starts) / counts
    mean_y = np.add.reduceat(y, starts) / counts
    return Drawn(mean_x, mean_y, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts))
