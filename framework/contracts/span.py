"""How long the parts of a step take over many steps, and how this differs over ranks.

The newest steps are kept exactly. Older ones are counted in buckets from one nanosecond on, each
one percent wider than the one before, so that a quantile is off by at most half a bucket.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil, inf, log
from typing import Any, NamedTuple, final

import numpy as np

SPANS = ("wait", "copy", "forward", "backward", "optimizer", "report")
IDLE = "idle"  # a device's time between its last work and the first work of the next batch
EXCHANGE = "exchange"  # a rank's time in exchanges with other ranks, which waits for the slowest
ALL_SPANS = (*SPANS[:4], EXCHANGE, *SPANS[4:])  # of one of several ranks
OWN = "before an exchange"  # a mark that ends a rank's own work; the next span gets its time
WIDTH = 1.01
LEAST_S = 1e-9
MOST_LAPS = 32  # laps that are kept apart
MOST_RECENT = 512  # steps that are kept exactly; counting that many at once costs 0.03 us each


def buckets(seconds: Sequence[float]) -> dict[int, int]:
    """Return how many of ``seconds`` fall into each bucket, by the bucket's number (0 or more)."""
    numbers = np.log(np.maximum(seconds, LEAST_S) / LEAST_S) / log(WIDTH)
    counts = np.bincount(numbers.astype(np.int64))
    (filled,) = counts.nonzero()
    return dict(zip(filled.tolist(), counts[filled].tolist(), strict=True))


@dataclass(frozen=True)
class Span:
    """Seconds that one part of a step took, over the steps that had this part."""

    total_s: float = 0.0
    num_steps: int = 0
    recent: tuple[float, ...] = ()  # seconds of each of the newest steps
    counts: Mapping[int, int] = field(default_factory=dict[int, int])  # older steps by bucket

    @staticmethod
    def of(seconds: Sequence[float]) -> "Span":
        """Return the span of consecutive steps that took ``seconds`` each."""
        return Span(sum(seconds), len(seconds), tuple(seconds))

    @staticmethod
    def summed(spans: Sequence["Span"]) -> "Span":
        """Return the span of all steps of at least one span."""
        if len(spans) == 1:
            return spans[0]
        recent = tuple(chain.from_iterable(span.recent for span in spans))
        counts = sum((Counter(span.counts) for span in spans), Counter[int]())
        if len(recent) > MOST_RECENT:
            counts += Counter(buckets(recent))
            recent = ()
        total_s = sum(span.total_s for span in spans)
        return Span(total_s, sum(span.num_steps for span in spans), recent, counts)

    def scaled(self, ratio: int) -> "Span":
        """Return the span that stands for ``ratio`` times as many steps of the same kind."""
        counts = {number: count * ratio for number, count in self.counts.items()}
        return Span(self.total_s * ratio, self.num_steps * ratio, self.recent * ratio, counts)

    @property
    def mean_s(self) -> float:
        return self.total_s / max(1, self.num_steps)

    def quantile_s(self, share: float) -> float:
        """Return the time that ``share`` (0 to 1) of the steps did not exceed, within 0.5 %."""
        if not self.num_steps:
            return 0.0
        rank = max(1, ceil(share * self.num_steps))
        if not self.counts:
            return sorted(self.recent)[rank - 1]
        counts = sorted((Counter(self.counts) + Counter(buckets(self.recent))).items())
        place = int(np.searchsorted(np.cumsum([count for _, count in counts]), rank))
        return LEAST_S * WIDTH ** (counts[place][0] + 0.5)


Spans = Mapping[str, Span]


def merged(*parts: Spans) -> dict[str, Span]:
    """Return the sums by name, in the order of a step."""
    by_name: dict[str, list[Span]] = {name: [] for name in (*ALL_SPANS, IDLE)}
    for part in parts:
        for name, span in part.items():
            by_name.setdefault(name, []).append(span)
    return {name: Span.summed(spans) for name, spans in by_name.items() if spans}


@final
class SpanSum:
    """The spans of a run. The newest laps are kept apart: adding many at once saves 1 us a step."""

    def __init__(self) -> None:
        self._laps: list[Spans] = []

    def add(self, spans: Spans) -> None:
        self._laps.append(spans)
        if len(self._laps) > MOST_LAPS:
            self._laps = [self.whole]

    @property
    def whole(self) -> dict[str, Span]:
        return merged(*self._laps)


def step_s(spans: Spans) -> float:
    """Return the seconds of all steps. Beside ``idle``, ``wait`` overlaps a device's work."""
    return sum(span.total_s for name, span in spans.items() if name != "wait" or IDLE not in spans)


def shares(spans: Spans) -> dict[str, float]:
    """Return each span's share of the steps' time. Beside ``idle``, ``wait`` is no part of it."""
    whole_s = step_s(spans) or inf
    return {name: span.total_s / whole_s for name, span in spans.items()}


def span_figures(spans: Spans) -> dict[str, dict[str, float]]:
    """Return the figures of each span, as ``summary.json`` has them."""
    share_of = shares(spans)
    return {
        name: {
            "total_s": span.total_s,
            "mean_s": span.mean_s,
            "p50_s": span.quantile_s(0.5),
            "p90_s": span.quantile_s(0.9),
            "share": share_of[name],
        }
        for name, span in spans.items()
    }


def waiting_share(spans_s: Mapping[str, float]) -> float | None:
    """Return the share of a step's seconds that wait for data; None if this was not measured."""
    counted_s = {name: s for name, s in spans_s.items() if name != "wait" or IDLE not in spans_s}
    waiting_s = counted_s.get(IDLE, counted_s.get("wait"))
    total_s = sum(counted_s.values())
    return waiting_s / total_s if waiting_s is not None and total_s else None


class RankSpan(NamedTuple):
    """The mean seconds per step of one span, over the ranks."""

    min_s: float
    median_s: float
    max_s: float
    rank: int  # the one with ``max_s``


class LateRank(NamedTuple):
    """The rank for which the others wait most."""

    rank: int
    span: str  # in which its own work takes longer than that of the others
    steps_share: float  # of the steps (0 to 1) in which it is the last, and late
    late_s: float  # mean seconds by which it comes after the median of the others in these steps
    lost_share: float  # of all the steps' time that the others wait for it

    @property
    def words(self) -> str:
        """The finding as a sentence."""
        late = f"{1e3 * self.late_s:.0f}"
        if self.late_s < 0.1:
            late = f"{1e3 * self.late_s:.3g}"
        return (
            f"rank {self.rank} is late in {100 * self.steps_share:.0f} % of the steps, in "
            f"`{self.span}`, by {late} ms; the others lost {100 * self.lost_share:.0f} % of the run"
        )


@dataclass(frozen=True)
class RankReport:
    """What the ranks measured. ``late`` is None if no rank makes the others wait."""

    num_ranks: int
    spans: dict[str, RankSpan] = field(default_factory=dict[str, RankSpan])
    late: LateRank | None = None

    def as_dict(self) -> dict[str, Any]:
        spans = {name: span._asdict() for name, span in self.spans.items()}
        return {"num": self.num_ranks, "spans": spans, "late": self.late and self.late._asdict()}
