"""Decide how many workers read, and how far ahead, by a pure function of what was observed.

The order of the records does not depend on it, so a change never changes what is learned.
"""

import math
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
REST = 8  # observations before all is tried again that brought nothing; doubled each time
LONGEST_REST = 64
MOST_AHEAD = 16  # batches
LEAST_FREE = 0.1  # if a smaller share of the memory is free, what was added is taken back


class ReadPlan(NamedTuple):
    """How records are read: what a tuner changes."""

    num_workers: int
    ahead: int  # batches that all threads together, or each process, read ahead
    depth: int  # batches that the loader keeps ready; 0: it has no queue


class TunerLimits(NamedTuple):
    """What a tuner must not exceed."""

    num_cores: int  # of this rank
    most_workers: int
    budget_bytes: float  # of memory, for all that is added
    are_processes: bool


class Observation(NamedTuple):
    """What was measured since the observation before."""

    seconds: float  # of training, without pauses
    num_batches: int  # that arrived
    wait_share: float  # the share of ``seconds`` that steps waited
    busy_workers: float  # workers that were reading, on average
    queue_share: float | None = None  # how full the loader's queue was, 0 to 1; None: it has none
    free_cores: float = 0.0  # of this rank, that it did not use
    free_memory: float = 1.0  # the share of the memory
    batch_bytes: float = 0.0
    num_slices: int = 1  # into which threads cut a batch
    worker_bytes: float = 0.0  # of a worker process of its own
    is_changing: bool = False  # whether the workers from before the newest change still read


class Decision(NamedTuple):
    """A change of the plan, and why."""

    plan: ReadPlan
    why: str


@final
class Tuner:
    """Watches observations, one after another, and decides.

    If steps wait, it tries more workers, or more batches ahead, and keeps what makes steps faster.
    If they wait no more and few workers are busy, it goes back to the plan ``home``. After a
    change, it ignores observations until new workers have begun, and the one in which they begin.
    """

    def __init__(self, home: ReadPlan, limits: TunerLimits) -> None:
        self.home = home
        self.plan = home
        self.limits = limits
        self._before = home  # the plan before the one that is being tried
        self._rate: float | None = None  # of that plan, in batches per second; None: no trial
        self._is_reverting = False  # whether the trial takes back what was added
        self._is_settling = False
        self._num_hot = self._num_cool = 0
        self._hot_s = 0.0
        self._rest = self._num_rests = 0
        self._failed: set[ReadPlan] = set()
        self._cool = COOL

    def observe(self, seen: Observation) -> Decision | None:
        """Take in an observation. Return a change, or None."""
        if self._is_settling:
            self._is_settling = seen.is_changing
            return None
        if seen.free_memory < LEAST_FREE and self.plan != self.home:
            self._rate = None
            return self._change(self.home, f"only {100 * seen.free_memory:.0f} % of memory is free")
        waited = f"steps waited {100 * seen.wait_share:.0f} %"
        if self._rate is not None:
            # Keep the plan that was tried, or return to the one before.
            before = self._rate
            now = seen.num_batches / seen.seconds
            self._rate = None
            # Fewer workers cannot make the steps themselves slower, but more of them can.
            is_kept = now >= BETTER * before
            if self._is_reverting:
                is_kept = seen.wait_share <= WAITS
            if is_kept:
                self._failed.clear()
                self._num_rests, self._cool = 0, COOL
                return None
            if self._is_reverting:
                self._cool = min(MOST_COOL, 2 * self._cool)
                return self._change(self._before, waited)
            self._failed.add(self.plan)
            why = f"the rate changed by {100 * (now / before - 1):+.0f} %"
            return self._change(self._before, why)
        is_hot = seen.wait_share > WAITS
        self._hot_s = self._hot_s + seen.seconds if is_hot else 0.0
        self._num_hot = self._num_hot + 1 if is_hot else 0
        self._num_cool = self._num_cool + 1 if seen.wait_share < CALM else 0
        if self._num_hot >= HOT and not self._rest:
            return self._try_more(seen, waited)
        self._rest = max(0, self._rest - 1)
        enough = max(1, self.home.num_workers) >= SPARE * seen.busy_workers
        if self.plan == self.home or self._num_cool < self._cool or not enough:
            return None
        busy = f"{seen.busy_workers:.1f} of {self.plan.num_workers} workers were busy"
        return self._try(self.home, f"{waited}, and {busy}", seen, reverts=True)

    def _try_more(self, seen: Observation, waited: str) -> Decision | None:
        """Try the plan that promises most and has not failed. If there is none, rest."""
        num, ahead, depth = self.plan
        wanted = math.ceil(num / max(0.01, 1 - seen.wait_share))
        most = max(num, self.limits.most_workers)
        more = self.plan._replace(num_workers=min(max(num + 1, min(wanted, 2 * num)), most))
        deeper = ReadPlan(num, min(MOST_AHEAD, 2 * ahead), min(MOST_AHEAD, 2 * depth))
        plans = [more, deeper]
        is_late_at_times = seen.queue_share is not None and seen.queue_share >= FULL
        if is_late_at_times or seen.busy_workers < IDLE * num:
            plans = [deeper, more]
        if num >= self.limits.num_cores and seen.free_cores < FREE_CORES:
            plans.remove(more)
        for plan in plans:
            added = self._bytes(plan, seen) - self._bytes(self.home, seen)
            fits = added <= self.limits.budget_bytes and seen.free_memory >= LEAST_FREE
            if fits and plan != self.plan and plan not in self._failed:
                return self._try(plan, f"{waited} of the last {self._hot_s:.0f} s", seen)
        self._failed.clear()
        self._rest = min(LONGEST_REST, REST << self._num_rests)
        self._num_rests += 1
        return None

    def _bytes(self, plan: ReadPlan, seen: Observation) -> float:
        if not self.limits.are_processes:
            under_way = max(plan.ahead, plan.num_workers // seen.num_slices)
            return seen.batch_bytes * (under_way + plan.depth)
        num_batches = plan.num_workers * plan.ahead + plan.depth
        return seen.batch_bytes * num_batches + seen.worker_bytes * plan.num_workers

    def _try(self, plan: ReadPlan, why: str, seen: Observation, reverts: bool = False) -> Decision:
        self._before, self._is_reverting = self.plan, reverts
        self._rate = seen.num_batches / seen.seconds
        return self._change(plan, why)

    def _change(self, plan: ReadPlan, why: str) -> Decision:
        self.plan = plan
        self._is_settling = True
        self._num_hot = self._num_cool = 0
        self._hot_s = 0.0
        return Decision(plan, why)
