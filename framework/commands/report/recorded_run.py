"""What the report knows of one run, or of one cell of a bench."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from framework.contracts.span import IDLE, SPANS
from framework.measure.statistics import median, quartiles


class RecordedSpan(NamedTuple):
    """Seconds per step. ``p50_s``, ``p90_s``: None where the run did not keep them."""

    mean_s: float
    p50_s: float | None = None
    p90_s: float | None = None


class MetricCurve(NamedTuple):
    """One metric of one split, float64 [N] each: optimizer steps, seconds of training up to there (NaN: not known), values."""

    steps: np.ndarray
    seconds: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class RecordedRun:
    """``status``: ``finished``, ``interrupted``, ``failed``, ``unfinished``, or, of a bench's cell, ``impossible``.

    ``kind``: ``run`` or ``cell``. ``what``: was measured; of a bench it may be less than training.

    ``choices``: what was asked for, key -> value as typed. ``config``: all of it, by dotted names. ``rates``: records per second, one for
    each report, window or repeat; ``rounds``: a bench's, by its round. ``spans``: what a step is made of, in its order; where a device's
    ``idle`` is known it stands in the place of ``wait``, the host's, which lies beside the device's work and is ``beside``. ``curves``: by
    split and metric. ``val``, ``best``: metric -> mean. ``figures``: single numbers by their names in ``summary.json``, units last.
    ``resources``: the same, of stages and usage. ``notes``: what a reader must know.
    """

    name: str
    place: str
    status: str = "finished"
    reason: str = ""
    kind: str = "run"
    what: str = "train"
    choices: Mapping[str, str] = field(default_factory=dict[str, str])
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    command: str = ""
    started: str = ""
    records_per_s: float | None = None
    rates: tuple[float, ...] = ()
    rounds: Mapping[int, float] = field(default_factory=dict[int, float])
    spans: Mapping[str, RecordedSpan] = field(default_factory=dict[str, RecordedSpan])
    beside: Mapping[str, RecordedSpan] = field(default_factory=dict[str, RecordedSpan])
    curves: Mapping[tuple[str, str], MetricCurve] = field(
        default_factory=dict[tuple[str, str], MetricCurve]
    )
    val: Mapping[str, float] = field(default_factory=dict[str, float])
    best: Mapping[str, float] = field(default_factory=dict[str, float])
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it came to its end, so that its figures can be compared."""
        return self.status == "finished"

    @property
    def step_s(self) -> float | None:
        """Seconds of a mean step."""
        total = math.fsum(span.mean_s for span in self.spans.values())
        return total or None

    @property
    def wait_share(self) -> float | None:
        """Of a step, that it waited for data: of a device that it was idle, else that no batch was ready."""
        waiting = self.spans.get(IDLE, self.spans.get("wait"))
        return None if self.step_s is None or waiting is None else waiting.mean_s / self.step_s

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """Records per second: what a quarter, and what three quarters, of the reports or windows stay below. None for fewer than 4."""
        if len(self.rates) < 4:
            return None
        low, _, high = quartiles(self.rates)
        return low, high

    @property
    def spread(self) -> float | None:
        """Half the distance between the quartiles, as a share of the median."""
        if self.quartiles is None:
            return None
        return (self.quartiles[1] - self.quartiles[0]) / 2 / median(self.rates)


def stacked(
    spans: Mapping[str, RecordedSpan],
) -> tuple[dict[str, RecordedSpan], dict[str, RecordedSpan]]:
    """Those that follow each other in a step, in its order, names it does not know last; and those that lie beside them."""
    order = (IDLE, *SPANS, *spans)
    beside = {"wait"} if IDLE in spans else set[str]()
    known = {name: spans[name] for name in order if name in spans}
    return {n: s for n, s in known.items() if n not in beside}, {
        n: s for n, s in known.items() if n in beside
    }
