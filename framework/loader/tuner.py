"""Decide how many workers read, and how far ahead, from what was observed of a run.

Decisions are a pure function of the observations. The order of the records does not depend on them,
so a change never changes what is learned.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

WAITS = 0.10  # a larger share of waiting asks for a change
CALM = 0.05  # a smaller share of waiting permits to go back
BETTER = 1.05  # a change is kept if steps come so much faster
SPARE = 1.25  # to go back, there must be so many times the workers that were busy
HOT = 2  # observations with waiting before a change
COOL = 3  # observations without waiting before going back; doubled each time that it fails
MOST_COOL = 48
FULL = 0.5  # if the queue is so full on average, batches are late only now and then
IDLE = 0.7  # if a smaller share of the workers is busy, they wait for their turn
FREE_CORES = 0.3  # so many idle cores can take further workers
OTHER_CORES = 0.5  # if other programs take so many, further workers may win back a share
REST = 8  # observations before all is tried again that brought nothing; doubled each time
LONGEST_REST = 64
SHIFT = 1.25  # if the rate changes by this factor, the rest is over
MOST_AHEAD = 16  # batches
LEAST_FREE = 0.1  # if a smaller share of the memory is free, what was added is taken back


class ReadPlan(NamedTuple):
    """How records are read: what a tuner changes."""

    num_workers: int
    ahead: int  # batches that all threads together, or each process, read ahead
    depth: int  # batches that the loader keeps ready; 0: it has no queue

    def changes_to(self, other: "ReadPlan") -> str:
        """Return the difference in words, such as ``workers 2 -> 4``."""
        names = ("workers", "batches read ahead", "loader depth")
        triples = zip(names, self, other, strict=True)
        return ", ".join(f"{name} {old} -> {new}" for name, old, new in triples if old != new)


@final
@dataclass(frozen=True)
class TunerLimits:
    """What a tuner must not exceed."""

    num_cores: int  # of this rank
    most_workers: int
    budget_bytes: float  # of memory, for all that is added
    are_processes: bool


class Observation(NamedTuple):
    """What was measured since the observation before.

    Attributes:
        seconds: Seconds of training, without pauses.
        num_batches: Batches that arrived.
        wait_share: The share of ``seconds`` that steps waited.
        busy_workers: Workers that were reading, on average.
        queue_share: How full the loader's queue was, 0 to 1. None: it has none.
        free_cores: Cores that nobody used.
        other_cores: Cores that other programs used.
        free_memory: The share of the memory that is free.
        batch_bytes: Bytes of a batch.
        num_slices: Into how many slices threads cut it.
        worker_bytes: Bytes of a worker process of its own.
        is_changing: Whether the workers from before the newest change still read.
    """

    seconds: float
    num_batches: int
    wait_share: float
    busy_workers: float
    queue_share: float | None = None
    free_cores: float = 0.0
    other_cores: float = 0.0
    free_memory: float = 1.0
    batch_bytes: float = 0.0
    num_slices: int = 1
    worker_bytes: float = 0.0
    is_changing: bool = False

    @property
    def rate(self) -> float:
        return self.num_batches / self.seconds


class Decision(NamedTuple):
    """A change of the plan, and why."""

    plan: ReadPlan
    why: str


class _Trial(NamedTuple):
    """A plan that is being tried."""

    before: ReadPlan
    rate: float  # of the plan before
    goes_back: bool  # whether it takes back what was added


@final
class Tuner:
    """Watches observations, one after another, and decides.

    If steps wait, it tries more workers, or more batches ahead, and keeps what makes steps faster.
    If they wait no more and few workers are busy, it goes back. After a change, observations are
    ignored until the new workers have begun, and one more in which they begin.

    Args:
        home: The plan to begin with, and to go back to.
        limits: What it must not exceed.
    """

    def __init__(self, home: ReadPlan, limits: TunerLimits) -> None:
        self.home = home
        self.plan = home
        self.limits = limits
        self._path: list[ReadPlan] = []  # from home to the present plan
        self._trial: _Trial | None = None
        self._is_settling = False
        self._num_hot = 0
        self._num_cool = 0
        self._hot_s = 0.0
        self._rest = 0
        self._num_rests = 0
        self._resting_rate = 0.0
        self._failed: set[ReadPlan] = set()
        self._cool = COOL

    def observe(self, seen: Observation) -> Decision | None:
        """Take in an observation. Return a change, or None."""
        if self._is_settling:
            self._is_settling = seen.is_changing
            return None
        if seen.free_memory < LEAST_FREE and self.plan != self.home:
            self._trial = None
            return self._change(self.home, f"only {100 * seen.free_memory:.0f} % of memory is free")
        if self._trial is not None:
            return self._judge(self._trial, seen)
        is_hot = seen.wait_share > WAITS
        self._hot_s = self._hot_s + seen.seconds if is_hot else 0.0
        self._num_hot = self._num_hot + 1 if is_hot else 0
        self._num_cool = self._num_cool + 1 if seen.wait_share < CALM else 0
        if self._num_hot >= HOT and not self._rests(seen):
            return self._try_more(seen)
        return self._go_back(seen)

    def _judge(self, trial: _Trial, seen: Observation) -> Decision | None:
        """Keep the plan that was tried, or return to the one before."""
        self._trial = None
        # Fewer workers cannot make the steps themselves slower, but more of them can.
        is_kept = seen.rate >= BETTER * trial.rate
        if trial.goes_back:
            is_kept = seen.wait_share <= WAITS
        if is_kept:
            self._forget()
            if not trial.goes_back:
                self._path.append(trial.before)
            return None
        if trial.goes_back:
            self._cool = min(MOST_COOL, 2 * self._cool)
            return self._change(trial.before, f"steps waited {100 * seen.wait_share:.0f} %")
        self._failed.add(self.plan)
        change = 100 * (seen.rate / trial.rate - 1)
        return self._change(trial.before, f"the rate changed by {change:+.0f} %")

    def _rests(self, seen: Observation) -> bool:
        """Return whether all that may help has failed not long ago."""
        if not self._rest:
            return False
        if not 1 / SHIFT < seen.rate / self._resting_rate < SHIFT:
            self._forget()
            return False
        self._rest -= 1
        if not self._rest:
            self._failed.clear()
        return True

    def _forget(self) -> None:
        """Forget what failed, since circumstances have changed."""
        self._rest = 0
        self._num_rests = 0
        self._failed.clear()
        self._cool = COOL

    def _try_more(self, seen: Observation) -> Decision | None:
        for plan in self._candidates(seen):
            added = self._bytes(plan, seen) - self._bytes(self.home, seen)
            fits = added <= self.limits.budget_bytes and seen.free_memory >= LEAST_FREE
            if fits and plan != self.plan and plan not in self._failed:
                break
        else:
            self._rest = min(LONGEST_REST, REST << self._num_rests)
            self._num_rests += 1
            self._resting_rate = seen.rate
            return None
        self._trial = _Trial(self.plan, seen.rate, goes_back=False)
        why = f"steps waited {100 * seen.wait_share:.0f} % of the last {self._hot_s:.0f} s"
        return self._change(plan, why)

    def _candidates(self, seen: Observation) -> list[ReadPlan]:
        """Return the plans that may help, the most promising first."""
        num, ahead, depth = self.plan
        wanted = math.ceil(num / max(0.01, 1 - seen.wait_share))
        most = max(num, self.limits.most_workers)
        more = self.plan._replace(num_workers=min(max(num + 1, min(wanted, 2 * num)), most))
        deeper = ReadPlan(num, min(MOST_AHEAD, 2 * ahead), min(MOST_AHEAD, 2 * depth))
        fewer = self.plan._replace(num_workers=num // 2)
        plans = [more, deeper]
        is_late_at_times = seen.queue_share is not None and seen.queue_share >= FULL
        if is_late_at_times or seen.busy_workers < IDLE * num:
            plans = [deeper, more]
        is_taken = seen.other_cores >= OTHER_CORES
        if num >= self.limits.num_cores and seen.free_cores < FREE_CORES and not is_taken:
            plans.remove(more)
        if is_taken and num > 1:
            plans.append(fewer)
        return plans

    def _bytes(self, plan: ReadPlan, seen: Observation) -> float:
        """Return the memory that a plan needs."""
        if not self.limits.are_processes:
            under_way = max(plan.ahead, plan.num_workers // seen.num_slices)
            return seen.batch_bytes * (under_way + plan.depth)
        num_batches = plan.num_workers * plan.ahead + plan.depth
        return seen.batch_bytes * num_batches + seen.worker_bytes * plan.num_workers

    def _go_back(self, seen: Observation) -> Decision | None:
        """Take back what was added, if steps do not wait and enough workers remain."""
        if self.plan == self.home or self._num_cool < self._cool:
            return None
        needed = SPARE * seen.busy_workers
        plans = (plan for plan in (self.home, *self._path) if max(1, plan.num_workers) >= needed)
        plan = next(plans, self.plan)
        if plan == self.plan:
            return None
        self._trial = _Trial(self.plan, seen.rate, goes_back=True)
        busy = f"{seen.busy_workers:.1f} of {self.plan.num_workers} workers were busy"
        return self._change(plan, f"steps waited {100 * seen.wait_share:.0f} %, and {busy}")

    def _change(self, plan: ReadPlan, why: str) -> Decision:
        self.plan = plan
        self._is_settling = True
        self._num_hot = 0
        self._num_cool = 0
        self._hot_s = 0.0
        if plan == self.home:
            self._path.clear()
        return Decision(plan, why)
