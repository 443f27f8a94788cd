"""The small model behind predictions that were not tried: how long a step takes, from what its parts take alone.

Preparing one step's records takes ``load_s`` seconds of one thread. Workers share it, as far as there are cores, and threads only as far as they
do not hold Python's lock. It runs beside the step wherever there are workers or a loader that reads ahead; then the slower of the two
decides, or both together where the cores are too few for them. With neither, the step waits for all of it.
"""

from dataclasses import dataclass, replace

from framework.commands.diagnose.facts import DiagnosisFacts


@dataclass(frozen=True)
class Load:
    """What the model looks at. ``load_s``, ``compute_s``: seconds per step alone; ``compute_cores``: CPU seconds per second of computing."""

    load_s: float
    compute_s: float
    compute_cores: float
    num_cores: int
    workers: int
    kind: str
    lock_share: float
    ahead: bool

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        if self.workers == 0 and not self.ahead:
            return self.load_s + self.compute_s
        work_s = self.load_s + self.compute_s * self.compute_cores
        return max(self.load_s / self._parallel, self.compute_s, work_s / self.num_cores)

    @property
    def _parallel(self) -> float:
        """How many times as fast as one thread the workers are."""
        workers = max(1, min(self.workers, self.num_cores))
        if self.kind == "process" or workers == 1:
            return workers
        return 1 / (self.lock_share + (1 - self.lock_share) / workers)  # Amdahl's law


def load_of(facts: DiagnosisFacts) -> Load | None:
    """The present settings' load; None where nothing could be measured in one thread."""
    rates, settings = facts.rates, facts.settings
    if rates.prepare is None:
        return None
    return Load(
        settings.batch_size / rates.prepare,
        settings.batch_size / rates.compute,
        min(rates.compute_cores, facts.machine.num_cores),
        facts.machine.num_cores,
        settings.workers,
        settings.kind,
        facts.lock_share,
        settings.loader != "plain",
    )


def gain(facts: DiagnosisFacts, **changes: object) -> float:
    """The factor on the rate of whole steps when the ``Load`` changes so; never more than the headroom."""
    load = load_of(facts)
    if load is None:
        return 1.0
    return min(facts.headroom, load.step_s / replace(load, **changes).step_s)


def load_gain(facts: DiagnosisFacts, load_s: float) -> float:
    """The same when preparing a step's records takes ``load_s``."""
    return gain(facts, load_s=load_s)
