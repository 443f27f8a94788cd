"""How long one part of a step takes, over many steps: total, mean, quantiles. A month of steps takes kilobytes.

Steps are counted in buckets, each 1 % wider than the one before, from a nanosecond on: a quantile is off by half a bucket at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, log

SPANS = ("wait", "copy", "forward", "backward", "optimizer", "report")
IDLE = "idle"  # of a device that works beside the host: between its last work and the next batch's first
WIDTH = 1.01
LEAST_S = 1e-9
_PER_BUCKET = 1 / log(WIDTH)


def bucket(seconds: float) -> int:
    """The number, 0 or more, of the bucket that ``seconds`` fall into."""
    return int(log(seconds / LEAST_S) * _PER_BUCKET) if seconds > LEAST_S else 0


@dataclass(frozen=True)
class Span:
    """``total_s``: over ``num_steps`` steps; ``counts``: of them by bucket. A step that never came to it is not counted."""

    total_s: float = 0.0
    num_steps: int = 0
    counts: Mapping[int, int] = field(default_factory=dict[int, int])

    def __add__(self, other: "Span") -> "Span":
        counts = dict(self.counts)
        for number, count in other.counts.items():
            counts[number] = counts.get(number, 0) + count
        return Span(self.total_s + other.total_s, self.num_steps + other.num_steps, counts)

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
        """The least seconds that ``share`` (0 to 1) of the steps did not exceed: the nearest rank, the middle of its bucket."""
        rank = max(1, ceil(share * self.num_steps))
        for number, count in sorted(self.counts.items()):
            rank -= count
            if rank <= 0:
                return LEAST_S * WIDTH ** (number + 0.5)
        return 0.0


Spans = Mapping[str, Span]


def merged(spans: Spans, more: Spans) -> dict[str, Span]:
    """Both, name by name, in the order of a step."""
    names = [*SPANS, IDLE, *spans, *more]
    return {
        name: spans.get(name, Span()) + more.get(name, Span()) for name in dict.fromkeys(names) if name in spans or name in more
    }


def step_s(spans: Spans) -> float:
    """Seconds of all steps together. Where a device's idle time is known, the host's ``wait`` lies beside its work, and is not added."""
    return sum(span.total_s for name, span in spans.items() if name != "wait" or IDLE not in spans)


def shares(spans: Spans) -> dict[str, float]:
    """Of all steps' seconds, by name, 0 to 1. They add up to 1, but for ``wait`` where ``idle`` is there: what of it costs is ``idle``."""
    whole_s = step_s(spans)
    return {name: span.total_s / whole_s if whole_s else 0.0 for name, span in spans.items()}
