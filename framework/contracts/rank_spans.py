"""How the spans of several ranks differ, and for which rank the others wait."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class RankSpan(NamedTuple):
    """The mean seconds per step of one span, over the ranks."""

    min_s: float
    median_s: float
    max_s: float
    rank: int  # the one with ``max_s``


class LateRank(NamedTuple):
    """The rank for which the others wait most.

    Attributes:
        rank: Its number.
        span: The span in which its own work takes longer than that of the others.
        steps_share: The share (0 to 1) of the steps in which it is the last, and late.
        late_s: Mean seconds by which it comes after the median of the others in these steps.
        lost_share: The share of all the steps' time that the others wait for it.
        uncertainty_s: How well the clocks of the ranks are known. What is less is not late.
    """

    rank: int
    span: str
    steps_share: float
    late_s: float
    lost_share: float
    uncertainty_s: float

    @property
    def words(self) -> str:
        """The finding as a sentence."""
        known = ""
        if self.uncertainty_s > 0:
            known = f" (clocks agree within {_milliseconds(self.uncertainty_s)})"
        return (
            f"rank {self.rank} is late in {100 * self.steps_share:.0f} % of the steps, "
            f"in `{self.span}`, by {_milliseconds(self.late_s)}{known}; "
            f"the others lost {100 * self.lost_share:.0f} % of the run"
        )


@dataclass(frozen=True)
class RankReport:
    """What the ranks measured. ``late`` is None if no rank makes the others wait."""

    num_ranks: int
    spans: dict[str, RankSpan] = field(default_factory=dict[str, RankSpan])
    late: LateRank | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for a file."""
        spans = {name: span._asdict() for name, span in self.spans.items()}
        return {"num": self.num_ranks, "spans": spans, "late": self.late and self.late._asdict()}


def _milliseconds(seconds: float) -> str:
    """Return milliseconds with two significant digits at least."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.1 else f"{1e3 * seconds:.0f} ms"
