"""Facts about what a run does beside its steps: validating, saving and reporting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# Steps in which the saves are counted, in units of the shortest interval.
HORIZON = 1000


@dataclass(frozen=True)
class RunFacts:
    """What a validation, a save and a report cost, and every how many steps each happens.

    A cost is in seconds, and an interval in optimizer steps, which is infinite if it never happens.
    """

    epoch_steps: int
    validate_s: float = 0.0
    validate_every: float = math.inf
    save_s: float = 0.0
    # The intervals of saving by their key. A validation saves the state, too.
    save_every: Mapping[str, float] = field(default_factory=dict[str, float])
    report_s: Mapping[str, float] = field(default_factory=dict[str, float])  # by the sink's name
    report_every: int = 1

    @property
    def saves_per_step(self) -> float:
        """How often a step is followed by a save. Intervals that coincide save once."""
        known = [int(every) for every in self.save_every.values() if every < math.inf]
        if not known:
            return 0.0
        last = HORIZON * min(known)
        return len({step for every in known for step in range(every, last + 1, every)}) / last

    @property
    def costs_s(self) -> dict[str, float]:
        """Seconds per step of validating, saving and reporting, on average over the run."""
        return {
            "validating": self.validate_s / self.validate_every,
            "saving": self.save_s * self.saves_per_step,
            "reporting": math.fsum(self.report_s.values()) / self.report_every,
        }

    def shares(self, step_s: float) -> dict[str, float]:
        """Return the share of the run that each of them takes beside steps of ``step_s``."""
        costs_s = self.costs_s
        run_s = step_s + math.fsum(costs_s.values())
        return {name: cost_s / run_s for name, cost_s in costs_s.items()}
