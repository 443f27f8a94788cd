"""Facts about what a run does beside its steps: validating, saving and reporting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# The keys whose saves also write the weights of the model.
WITH_WEIGHTS = ("validate_every", "checkpoint.every_epochs")
# Steps in which the saves are counted, in units of the shortest interval.
HORIZON = 1000


@dataclass(frozen=True)
class RunFacts:
    """What a validation, a save and a report cost, and every how many steps each happens.

    A cost is in seconds, and an interval in optimizer steps.
    """

    epoch_steps: int
    validate_s: float = 0.0
    validate_every: float | None = None  # None: the run never validates
    save_s: float = 0.0  # the state alone
    weights_s: float = 0.0  # the weights of the model, which some saves write, too
    # The intervals of saving by their key. A validation saves the state, too.
    save_every: Mapping[str, float] = field(default_factory=dict[str, float])
    report_s: Mapping[str, float] = field(default_factory=dict[str, float])  # by the sink's name
    report_every: int = 1

    @property
    def saves_per_step(self) -> float:
        """How often a step is followed by a save."""
        return times_per_step(*self.save_every.values())

    @property
    def weights_per_step(self) -> float:
        """How often a step is followed by a save of the weights, too."""
        every = self.save_every
        return times_per_step(*(every[key] for key in WITH_WEIGHTS if key in every))

    @property
    def reports_per_step(self) -> float:
        """How often a step is followed by a report: every epoch ends with one."""
        return times_per_step(self.report_every, self.epoch_steps)

    @property
    def costs_s(self) -> dict[str, float]:
        """Seconds per step of validating, saving and reporting, on average over the run."""
        validating_s = 0.0
        if self.validate_every is not None:
            validating_s = self.validate_s / self.validate_every
        return {
            "validating": validating_s,
            "saving": self.save_s * self.saves_per_step + self.weights_s * self.weights_per_step,
            "reporting": math.fsum(self.report_s.values()) * self.reports_per_step,
        }

    def shares(self, step_s: float) -> dict[str, float]:
        """Return the share of the run that each of them takes beside steps of ``step_s``."""
        costs_s = self.costs_s
        run_s = step_s + math.fsum(costs_s.values())
        return {name: cost_s / run_s for name, cost_s in costs_s.items()}


def times_per_step(*intervals: float) -> float:
    """Return how often something happens that has these intervals; if they coincide, once."""
    known = [int(every) for every in intervals]
    if not known:
        return 0.0
    last = HORIZON * min(known)
    return len({step for every in known for step in range(every, last + 1, every)}) / last
