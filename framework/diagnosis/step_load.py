"""Predict what a change to a step gains, from how long its parts take alone."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

# Steps in which events are counted, in units of the shortest interval.
HORIZON = 1000


@dataclass(frozen=True)
class Load:
    """A model of a step, to predict the gain of advice that was not tried.

    Workers divide ``load_s``, up to the number of cores; threads divide only the part that does not
    hold Python's lock. Preparing overlaps the step if there are workers or the loader reads ahead.
    The slower of the two then sets the pace, or the sum of both if the cores are too few.
    """

    load_s: float  # to prepare the records of a step in one thread
    compute_s: float  # to compute a step
    compute_cores: float  # CPU seconds per second of computing
    num_cores: int
    workers: int
    kind: str  # of workers: thread or process
    lock_share: float = 0.0  # share of preparing that holds Python's lock
    ahead: bool = False  # whether the loader reads ahead
    load_cores: float = 1.0  # CPU seconds per second of preparing
    start_s: float = 0.0  # to start workers, per step of the epoch

    @property
    def step_s(self) -> float:
        if self.workers == 0 and not self.ahead:
            return self.load_s + self.compute_s
        speedup = max(1.0, min(self.workers, self.num_cores / (self.load_cores or 1e-9)))
        if self.kind == "thread" and speedup > 1:  # Amdahl's law
            speedup = 1 / (self.lock_share + (1 - self.lock_share) / speedup)
        work_s = self.load_s * self.load_cores + self.compute_s * self.compute_cores
        return max(self.load_s / speedup, self.compute_s, work_s / self.num_cores) + self.start_s


class HasLoad(Protocol):
    """What a prediction needs of the facts about a run or a script."""

    @property
    def load(self) -> Load | None: ...

    @property
    def step_s(self) -> float: ...

    @property
    def headroom(self) -> float: ...

    @property
    def computing_share(self) -> float: ...


def gain(facts: HasLoad, measured: bool = False, **changes: Any) -> float:
    """Return the factor on the training rate if fields of its `Load` change.

    It is at most the headroom. With ``measured``, the present step is as it was measured: for what
    the model does not know of the present settings, and leaves out of the new ones.
    """
    load = facts.load
    if load is None:
        return 1.0
    now_s = facts.step_s if measured else load.step_s
    return min(facts.headroom, now_s / max(replace(load, **changes).step_s, 1e-9))


def computing_gain(facts: HasLoad, factor: float) -> float:
    """Return the factor on the training rate if computing is ``factor`` times as fast."""
    share = facts.computing_share
    return 1 / (share / factor + 1 - share)


def fixed_share(size: int, size_s: float, other_size: int, other_s: float) -> float:
    """Return the share a / t of a time t = a + b * records, from batches of two sizes."""
    fixed_s = (size_s * other_size - other_s * size) / (other_size - size)
    return min(1.0, max(0.0, fixed_s / size_s))


def times_per_step(*intervals: float) -> float:
    """Return how often something happens that has these intervals; if they coincide, once."""
    known = [int(every) for every in intervals]
    if not known:
        return 0.0
    last = HORIZON * min(known)
    return len({step for every in known for step in range(every, last + 1, every)}) / last
