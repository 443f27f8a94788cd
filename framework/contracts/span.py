"""How long one part of a step takes, over many steps: total, mean, quantiles. A month of steps takes kilobytes.

The newest steps are kept as they are; older ones are counted in buckets, each 1 % wider than the one before, from a nanosecond on: of
those a quantile is off by half a bucket at most.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log

import numpy as np

SPANS = ("wait", "copy", "forward", "backward", "optimizer", "report")
IDLE = "idle"  # of a device that works beside the host: between its last work and the next batch's first
WIDTH = 1.01
LEAST_S = 1e-9
MOST_RECENT = 512  # steps kept as they are; counting so many at once costs 0.03 us each


def buckets(seconds: Sequence[float]) -> dict[int, int]:
    """How many of ``seconds`` fall into which bucket: counts by its number, 0 or more."""
    numbers = np.log(np.maximum(seconds, LEAST_S) / LEAST_S) / log(WIDTH)
    return Counter(numbers.astype(np.int64).tolist())


@dataclass(frozen=True)
class Span:
    """``total_s``: over ``num_steps`` steps. ``recent``: what each of the newest took; ``counts``: of the others, by bucket. A step that never came
    to it is not counted.
    """

    total_s: float = 0.0
    num_steps: int = 0
    recent: tuple[float, ...] = ()
    counts: Mapping[int, int] = field(default_factory=dict[int, int])

    @staticmethod
    def of(seconds: Sequence[float]) -> "Span":
        """Of one step after the other, which took ``seconds``."""
        return Span(sum(seconds), len(seconds), tuple(seconds))

    def __add__(self, other: "Span") -> "Span":
        recent, counts = self.recent + other.recent, self.counts
        if other.counts:
            counts = _added(counts, other.counts)
        if len(recent) > MOST_RECENT:
            recent, counts = (), _added(counts, buckets(recent))
        return Span(self.total_s + other.total_s, self.num_steps + other.num_steps, recent, counts)

    @property
    def mean_s(self) -> float:
        """Seconds per step."""
        return self.total_s / self.num_steps if self.num_steps else 0.0

    @property
    def p50_s(self) -> float:
        """Half of the steps took no longer, within 0.5 %."""
        return self.quantile_s(0.5)

    @property
    def p90_s(self) -> float:
        """Nine of ten steps took no longer, within 0.5 %."""
        return self.quantile_s(0.9)

    def quantile_s(self, share: float) -> float:
        """The least seconds that ``share`` (0 to 1) of the steps did not exceed: the nearest rank; of a bucket, its middle."""
        if not self.num_steps:
            return 0.0
        rank = max(1, ceil(share * self.num_steps))
        if not self.counts:
            return sorted(self.recent)[rank - 1]
        counts = _added(self.counts, buckets(self.recent)) if self.recent else self.counts
        for number, count in sorted(counts.items()):
            rank -= count
            if rank <= 0:
                return LEAST_S * WIDTH ** (number + 0.5)
        raise AssertionError


def _added(counts: Mapping[int, int], more: Mapping[int, int]) -> dict[int, int]:
    return {number: counts.get(number, 0) + more.get(number, 0) for number in {*counts, *more}}


Spans = Mapping[str, Span]


def merged(spans: Spans, more: Spans) -> dict[str, Span]:
    """Both, name by name, in the order of a step."""
    found: dict[str, Span] = {}
    for name in dict.fromkeys((*SPANS, IDLE, *spans, *more)):
        one, other = spans.get(name), more.get(name)
        if one is not None or other is not None:
            found[name] = one + other if one and other else one or other or Span()
    return found


def step_s(spans: Spans) -> float:
    """Seconds of all steps together. Where a device's idle time is known, the host's ``wait`` lies beside its work, and is not added."""
    return sum(span.total_s for name, span in spans.items() if name != "wait" or IDLE not in spans)


def shares(spans: Spans) -> dict[str, float]:
    """Of all steps' seconds, by name, 0 to 1. They add up to 1, but for ``wait`` where ``idle`` is there: what of it costs is ``idle``."""
    whole_s = step_s(spans)
    return {name: span.total_s / whole_s if whole_s else 0.0 for name, span in spans.items()}
