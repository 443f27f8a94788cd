"""Predict the gain of advice that was not tried, from the rate of each part alone.

One thread prepares the records of a step in ``load_s`` seconds. Workers divide this time, up to the
number of cores; threads divide only the part that does not hold Python's lock. Preparing overlaps
the step if there are workers or the loader reads ahead. The slower of the two then sets the pace,
or the sum of both if the cores are too few. Without overlap, the step waits for all of it.
"""

from dataclasses import dataclass, replace

from framework.commands.diagnose.facts import DiagnosisFacts


@dataclass(frozen=True)
class Load:
    """The input of the model."""

    load_s: float  # to prepare the records of a step in one thread
    compute_s: float  # to compute a step
    compute_cores: float  # CPU seconds per second of computing
    num_cores: int
    workers: int
    kind: str  # of workers: thread or process
    lock_share: float  # share of preparing that holds Python's lock
    ahead: bool  # whether the loader reads ahead

    @property
    def step_s(self) -> float:
        if self.workers == 0 and not self.ahead:
            return self.load_s + self.compute_s
        work_s = self.load_s + self.compute_s * self.compute_cores
        return max(self.load_s / self._speedup, self.compute_s, work_s / self.num_cores)

    @property
    def _speedup(self) -> float:
        """How many times as fast as one thread the workers are."""
        workers = max(1, min(self.workers, self.num_cores))
        if self.kind == "process" or workers == 1:
            return workers
        return 1 / (self.lock_share + (1 - self.lock_share) / workers)  # Amdahl's law


def load_of(facts: DiagnosisFacts) -> Load | None:
    """Return the load of the present settings, or None if one thread could not be measured."""
    rates = facts.rates
    settings = facts.settings
    num_cores = facts.machine.num_cores
    if rates.prepare is None:
        return None
    return Load(
        load_s=facts.load_s,
        compute_s=settings.batch_size / rates.compute,
        compute_cores=min(rates.compute_cores, num_cores),
        num_cores=num_cores,
        workers=settings.workers,
        kind=settings.kind,
        lock_share=facts.lock_share,
        ahead=settings.loader != "plain",
    )


def gain(facts: DiagnosisFacts, **changes: object) -> float:
    """Return the factor on the training rate if fields of `Load` change, at most the headroom."""
    load = load_of(facts)
    if load is None:
        return 1.0
    return min(facts.headroom, load.step_s / replace(load, **changes).step_s)
