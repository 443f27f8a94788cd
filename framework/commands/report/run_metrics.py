"""``metrics.jsonl``: curves, rates and spans, however long it is, and whatever a killed run left at its end."""

import json
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from framework.commands.report.json_values import duration, number, positive
from framework.commands.report.recorded_run import MetricCurve, RecordedSpan
from framework.contracts.span import IDLE, SPANS

NO_METRIC = {"step", "epoch", "split", "lr", "records_per_s"}
UNITS = (
    "_s",
    "_bytes",
    "_share",
    "_count",
)  # what a name of a measured figure, not of a metric, ends with


class Metrics(NamedTuple):
    """``rates``: records per second of each training report. ``spans``: means over all training steps. ``num_bad``: lines that are not
    whole; a run that was killed while it wrote one leaves one, the last.
    """

    curves: dict[tuple[str, str], MetricCurve]
    rates: tuple[float, ...]
    spans: dict[str, RecordedSpan]
    last_step: int
    num_bad: int


@final
class _Series:
    """Numbers of one curve while they are read: 24 bytes a point."""

    def __init__(self) -> None:
        self.steps, self.seconds, self.values = array("d"), array("d"), array("d")

    def add(self, step: float, seconds: float, value: float) -> None:
        self.steps.append(step)
        self.seconds.append(seconds)
        self.values.append(value)

    def curve(self) -> MetricCurve:
        """In the order of the steps; of two lines about one step, as a run that was killed and resumed may leave, the later one."""
        steps, seconds, values = (
            np.frombuffer(numbers, np.float64)
            for numbers in (self.steps, self.seconds, self.values)
        )
        if len(steps) < 2 or bool(np.all(np.diff(steps) > 0)):
            return MetricCurve(steps, seconds, values)
        _, last = np.unique(steps[::-1], return_index=True)
        kept = len(steps) - 1 - last
        return MetricCurve(steps[kept], np.maximum.accumulate(seconds[kept]), values[kept])


@final
class _Reader:
    """Takes line after line. ``batch_size``: records per step, for files without spans; None where it is not known."""

    def __init__(self, batch_size: float | None) -> None:
        self.batch_size = batch_size
        self.series: dict[tuple[str, str], _Series] = {}
        self.names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.rates = array("d")
        self.totals_s: dict[str, float] = {}
        self.num_steps = self.last_step = self.seconds = 0.0
        self.num_bad = 0

    def take(self, line: dict[str, Any]) -> None:
        step, split = number(line.get("step")), line.get("split")
        if step is None or not 0 <= step < 1 << 53 or not isinstance(split, str):
            self.num_bad += 1
            return
        if split == "train":
            self._advance(step, line)
        keys = tuple(line)
        if keys not in self.names:
            self.names[keys] = tuple(_metric_names(keys))
        for name in self.names[keys]:
            value = number(line[name])
            if value is not None:
                self.series.setdefault((split, name), _Series()).add(step, self.seconds, value)

    def _advance(self, step: float, line: dict[str, Any]) -> None:
        """Time goes on by what the steps since the last report took."""
        steps = step - self.last_step
        self.last_step = step
        rate = positive(line.get("records_per_s"))
        if rate is not None:
            self.rates.append(rate)
        spans_s = {name: duration(line.get(f"{name}_s")) for name in (*SPANS, IDLE)}
        known_s = {name: seconds for name, seconds in spans_s.items() if seconds is not None}
        if steps <= 0:  # the file goes back: these steps were counted
            return
        self.num_steps += steps
        for name, seconds in known_s.items():
            self.totals_s[name] = self.totals_s.get(name, 0.0) + seconds * steps
        step_s = math.fsum(
            seconds for name, seconds in known_s.items() if name != "wait" or IDLE not in known_s
        )
        if not step_s:
            step_s = self.batch_size / rate if self.batch_size and rate else math.nan
        self.seconds += steps * step_s

    def done(self) -> Metrics:
        means = {
            name: RecordedSpan(total_s / self.num_steps) for name, total_s in self.totals_s.items()
        }
        curves = {name: series.curve() for name, series in self.series.items()}
        return Metrics(curves, tuple(self.rates), means, int(self.last_step), self.num_bad)


def _metric_names(keys: tuple[str, ...]) -> Iterator[str]:
    """The keys of a line that are loss and metrics: they stand between ``split`` and ``lr``."""
    start = keys.index("split") + 1
    stop = keys.index("lr") if "lr" in keys[start:] else len(keys)
    return (name for name in keys[start:stop] if name not in NO_METRIC and not name.endswith(UNITS))


def read_metrics(path: Path, batch_size: float | None = None) -> Metrics:
    """All of ``path``; nothing where there is no such file. Lines that are not whole are counted and left out."""
    reader = _Reader(batch_size)
    try:
        with open(path, "rb") as file:
            for line in file:
                found = _object(line)
                if found is None:
                    reader.num_bad += 1
                else:
                    reader.take(found)
    except OSError:
        pass
    return reader.done()


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# ---------------------------------------------------------------------------------------------------------------- thinning

MOST = 600  # points of a curve that are all drawn


def columns_of(most: int) -> int:
    """Columns that a curve of more than ``most`` points is drawn in: a mean and two ends each make as many numbers."""
    return max(1, 2 * most // 5)


class Drawn(NamedTuple):
    """A curve as it is drawn. ``low``, ``high``: the least and greatest value of each column's points; None where every point is drawn."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def thinned(x: np.ndarray, y: np.ndarray, most: int = MOST) -> Drawn:
    """Every point that is finite; or, of more than ``most``, columns of equal width: the mean of each, its least and its greatest.

    ``x`` must not decrease. No point is left out of what is drawn: it lies between the least and the greatest of its column.
    """
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= most or x[0] == x[-1]:
        return Drawn(x, y, None, None)
    edges = np.linspace(x[0], x[-1], columns_of(most) + 1)
    starts = np.unique(
        np.searchsorted(x, edges[:-1], side="left")
    )  # an empty column starts where the next one does
    counts = np.diff([*starts, len(x)])
    mean_x, mean_y = np.add.reduceat(x, starts) / counts, np.add.reduceat(y, starts) / counts
    return Drawn(mean_x, mean_y, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts))
