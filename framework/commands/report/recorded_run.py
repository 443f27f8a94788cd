"""One run, or one cell of a bench, as the report knows it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from framework.cli.units import plain, share
from framework.contracts.rank_spans import RankReport
from framework.contracts.span import ALL_SPANS, IDLE, waiting_share
from framework.measure.statistics import quartiles, spread_share


class RecordedSpan(NamedTuple):
    """Seconds per step: the mean, and the quantiles if the run kept them."""

    mean_s: float
    p50_s: float | None = None
    p90_s: float | None = None


class RecordedRecord(NamedTuple):
    """A record that took many times as long to read as the usual one."""

    name: str
    mean_s: float  # when it was slow
    num_reads: float
    size_bytes: float | None
    rank: float | None


class MetricCurve(NamedTuple):
    """One metric of one split, as float64 arrays of equal length."""

    steps: np.ndarray  # optimizer steps
    seconds: np.ndarray  # seconds of training up to each step; NaN if they are unknown
    values: np.ndarray


@dataclass(frozen=True)
class RecordedRun:
    """One run, or one cell of a bench."""

    name: str  # of its directory or file
    place: str  # the path of its directory or file
    status: str = "finished"  # or interrupted, failed, unfinished; a refused cell is impossible
    reason: str = ""  # why it did not finish
    kind: str = "run"  # or cell
    what: str = "train"  # or the part of training that a bench measured
    choices: Mapping[str, str] = field(default_factory=dict)  # as typed
    config: Mapping[str, Any] = field(default_factory=dict)  # by dotted names
    facts: Mapping[str, Any] = field(default_factory=dict)  # machine, versions, revision
    command: str = ""
    started: str = ""
    records_per_s: float | None = None
    rates: tuple[float, ...] = ()  # records per second of each report, window or repeat
    rounds: Mapping[int, float] = field(default_factory=dict)  # rates by the round of a bench
    # In the order of a step. On a device ``idle`` takes the place of the host's ``wait``, which
    # happens beside the device's work.
    spans: Mapping[str, RecordedSpan] = field(default_factory=dict)
    beside: Mapping[str, RecordedSpan] = field(default_factory=dict)
    curves: Mapping[tuple[str, str], MetricCurve] = field(default_factory=dict)  # (split, metric)
    # Means of the last validation; of several sets, their names begin with the set's and a dot.
    val: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)  # means of the best validation
    figures: Mapping[str, float] = field(default_factory=dict)  # names end with the unit
    resources: Mapping[str, float] = field(default_factory=dict)  # stages, use of the machine
    slow: tuple[RecordedRecord, ...] = ()
    notes: tuple[str, ...] = ()
    ranks: RankReport | None = None  # None: one rank

    @property
    def is_whole(self) -> bool:
        """Whether the run reached its end, so that its figures can be compared."""
        return self.status == "finished"

    @property
    def began_s(self) -> float:
        """When it began, in seconds since 1970; 0 if that is not known."""
        try:
            return datetime.strptime(self.started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
        except ValueError:
            return 0.0

    @property
    def step_s(self) -> float | None:
        """The seconds of a mean step."""
        return math.fsum(span.mean_s for span in self.spans.values()) or None

    @property
    def wait_share(self) -> float | None:
        """The share of a step without a batch; on a device the share that the device was idle."""
        return waiting_share({name: span.mean_s for name, span in self.spans.items()})

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The lower and upper quartile of the rates; None for fewer than 4."""
        if len(self.rates) < 4:
            return None
        low, _, high = quartiles(self.rates)
        return low, high

    @property
    def spread(self) -> str:
        """Half the distance between the quartiles as a share of the median, in words."""
        if self.quartiles is None:
            return ""
        return f"± {share(spread_share(self.rates))}"

    def best_of(self, metric: str) -> str:
        """Return ``metric`` at the best validation, in words.

        Return "" if the last validation has the same value, or if the value is unknown.
        """
        best = self.best.get(metric)
        if best is None or best == self.val.get(metric):
            return ""
        return f"best {plain(best)}"


def is_validation(split: str) -> bool:
    """Return whether a split is the validation, or one of several validation sets."""
    return split.partition(".")[0] == "val"


def named_by_set(split: str, metric: str) -> str:
    """Return a metric's name in ``RecordedRun.val``, as in ``loss`` and ``clean.loss``."""
    _, dot, name = split.partition(".")
    return f"{name}{dot}{metric}"


def stacked(
    spans: Mapping[str, RecordedSpan],
) -> tuple[dict[str, RecordedSpan], dict[str, RecordedSpan]]:
    """Split spans into those that make up a step, in order, and those that run beside it."""
    ordered = {name: spans[name] for name in (IDLE, *ALL_SPANS, *spans) if name in spans}
    beside: dict[str, RecordedSpan] = {}
    if IDLE in ordered and "wait" in ordered:
        beside["wait"] = ordered.pop("wait")
    return ordered, beside
