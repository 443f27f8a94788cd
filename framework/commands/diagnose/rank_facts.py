"""Facts about the ranks of a run, from training steps that all of them took together."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from framework.contracts.rank_spans import LateRank, RankSpan


@dataclass(frozen=True)
class RankFacts:
    """What the ranks of a run measured together."""

    num_ranks: int
    num_steps: int  # that were measured
    step_s: float  # seconds of a mean step
    spans: Mapping[str, RankSpan] = field(default_factory=dict[str, RankSpan])
    late: LateRank | None = None  # the rank for which the others wait; None if there is none
    # Shares of the steps' time: of exchanges without waiting for a rank, and of waiting for ranks.
    exchange_share: float = 0.0
    waiting_share: float = 0.0
    # The largest share of a batch, in numbers, over the mean one: in a step, and of one rank over
    # all steps. 1: all ranks have the same amount of work.
    step_work: float = 1.0
    rank_work: float = 1.0
    unsynced_s: float | None = None  # seconds of a step that exchanges no gradients; None: unknown
    sync_batch_norm: bool = False  # whether batch norm exchanges statistics in every step

    @property
    def data_share(self) -> float:
        """The share of a step in which the median rank waits for data."""
        waits = [span.median_s for name, span in self.spans.items() if name in ("wait", "idle")]
        return min(waits, default=0.0) / self.step_s

    @property
    def unsynced_gain(self) -> float:
        """The factor on the training rate if gradients were exchanged in no time."""
        return max(1.0, self.step_s / (self.unsynced_s or self.step_s))

    @staticmethod
    def of(values: Mapping[str, Any]) -> "RankFacts":
        """Undo ``as_dict``."""
        late = values["late"]
        spans = {name: RankSpan(**span) for name, span in values["spans"].items()}
        known: dict[str, Any] = {**values, "spans": spans, "late": late and LateRank(**late)}
        return RankFacts(**known)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = asdict(self)
        plain["spans"] = {name: span._asdict() for name, span in self.spans.items()}
        plain["late"] = self.late and self.late._asdict()
        return plain
