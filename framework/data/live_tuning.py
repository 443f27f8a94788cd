"""``workers.num=auto``: watch a run while it trains, and change how its records are read."""

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any, Protocol, final, runtime_checkable

from framework.contracts.waits import Waits
from framework.data.source import WorkerSource
from framework.errors import ConfigError
from framework.loader.queue import Occupancy
from framework.loader.tuner import Observation, ReadPlan, Tuner, TunerLimits
from framework.measure.host import (
    available_memory_bytes,
    busy_cpu_s,
    num_cores,
    process_cpu_s,
    total_memory_bytes,
    unshared_bytes,
)

LOOK_S = 4.0  # between two observations; each takes about a millisecond
LEAST_BATCHES = 4  # of an observation
MOST_PER_CORE = 4  # workers; more of them wait for storage than for cores
LEAST_MOST = 8
MOST_WORKERS = 128
BUDGET_SHARE = 0.25  # of the free memory: what may be added
MOST_NOTED = 100  # decisions in the summary


@runtime_checkable
class Queued(Protocol):
    """A capability of a loader: it keeps batches ready, and can keep more."""

    @property
    def depth(self) -> int: ...

    @property
    def occupancy(self) -> Occupancy: ...

    def deepen(self, depth: int) -> None: ...


def start_tuning(
    source: object, loader: object, waits: Waits, cores: int, say: Callable[[str], None]
) -> "LiveTuning":
    """Let a tuner change ``source`` and ``loader`` from now on.

    ConfigError C174 if the source has no workers that could be changed.
    """
    if not isinstance(source, WorkerSource) or not source.takes_workers:
        what = "the chosen data has no workers whose number could be changed"
        raise ConfigError(174, "workers.num = auto", what, "leave workers.num out")
    reading: WorkerSource[Any] = source
    return LiveTuning(reading, loader, waits, cores, say)


@final
class LiveTuning:
    """Observes a run every few seconds, in the thread of the step, and applies what is decided.

    ``waits`` calls ``look``. ``cores`` are those of this rank, and ``say`` prints a note.
    ``decisions`` has all decisions in words, with the seconds since the start.
    """

    def __init__(
        self,
        source: WorkerSource[Any],
        loader: object,
        waits: Waits,
        cores: int,
        say: Callable[[str], None],
    ) -> None:
        self._source = source
        self._queue = loader if isinstance(loader, Queued) else None
        self._waits = waits
        self._say = say
        workers = source.workers
        depth = self._queue.depth if self._queue is not None else 0
        limits = TunerLimits(
            num_cores=cores,
            most_workers=min(MOST_WORKERS, max(LEAST_MOST, MOST_PER_CORE * cores)),
            budget_bytes=BUDGET_SHARE * available_memory_bytes(),
            are_processes=workers.kind == "process",
        )
        self._tuner = Tuner(ReadPlan(workers.num, workers.ahead, depth), limits)
        self._began_at = time.perf_counter()
        self._before = self._counters()
        self.decisions: list[dict[str, Any]] = []
        self._num_taken = 0
        waits.call(self.look)

    @property
    def plan(self) -> dict[str, int]:
        return dict(self._tuner.plan._asdict())

    def take(self) -> dict[str, Any]:
        """Return the present plan, and the decisions since the last call, in plain values."""
        new = self.decisions[self._num_taken :]
        self._num_taken = len(self.decisions)
        block: dict[str, Any] = dict(self.plan)
        if new:
            block["decisions"] = [decision["text"] for decision in new]
        return block

    def summary(self) -> dict[str, Any]:
        """Return the present plan, and the newest decisions of the run."""
        return {**self.plan, "decisions": self.decisions[-MOST_NOTED:]}

    def look(self, now: float) -> float:
        """Observe and decide. Return when to look again, by ``perf_counter``."""
        before = self._before
        num_batches = self._waits.num_batches - before["num_batches"]
        wait_s = self._waits.wait_s - self._waits.start_s
        seconds = wait_s + self._waits.step_s - before["wait_s"] - before["step_s"]
        if num_batches < LEAST_BATCHES or seconds < LOOK_S / 2:
            return now + LOOK_S / 4
        counters = self._counters()
        self._before = counters
        decision = self._tuner.observe(self._observed(before, counters))
        if decision is not None:
            workers, queue, new = self._source.workers, self._queue, decision.plan
            old = ReadPlan(workers.num, workers.ahead, queue.depth if queue else 0)
            workers.change(new.num_workers, new.ahead)
            if queue is not None and new.depth != old.depth:
                queue.deepen(new.depth)
            text = f"{old.changes_to(new)}: {decision.why}"
            at_s = round(time.perf_counter() - self._began_at, 1)
            self.decisions.append({"at_s": at_s, "text": text})
            self._say(f"note: {text}")
        return now + LOOK_S

    def _observed(self, before: dict[str, float], now: dict[str, float]) -> Observation:
        change = {name: value - before[name] for name, value in now.items()}
        seconds = max(change["wait_s"] + change["step_s"], 1e-9)
        wall_s = max(change["at"], 1e-9)
        queue_share = None
        if self._queue is not None and change["num_taken"]:
            queue_share = change["num_ready"] / change["num_taken"] / max(1, self._queue.depth)
        busy = change["busy_s"] / wall_s
        own = change["own_s"] / wall_s
        return Observation(
            seconds=seconds,
            num_batches=int(change["num_batches"]),
            wait_share=change["wait_s"] / seconds,
            busy_workers=change["read_s"] / wall_s,
            queue_share=queue_share,
            free_cores=num_cores() - max(busy, own),
            # Ranks would take each other for other programs.
            other_cores=0.0 if "RANK" in os.environ else max(0.0, busy - own),
            free_memory=available_memory_bytes() / total_memory_bytes(),
            batch_bytes=self._source.batch_bytes,
            num_slices=self._source.num_slices,
            worker_bytes=max((float(unshared_bytes(pid)) for pid in _children()), default=0.0),
            is_changing=self._source.workers.is_changing,
        )

    def _counters(self) -> dict[str, float]:
        """Return sums that only grow, but for those of children that have ended."""
        own_s = time.process_time() + sum(process_cpu_s(pid) or 0.0 for pid in _children())
        counters = {
            "at": time.perf_counter(),
            # but for the first of an epoch: nothing is ready then
            "wait_s": self._waits.wait_s - self._waits.start_s,
            "step_s": self._waits.step_s,
            "num_batches": self._waits.num_batches,
            "read_s": sum(self._source.workers.stages.sums_s.copy().values()),
            "busy_s": busy_cpu_s() or 0.0,
            "own_s": own_s,
        }
        if self._queue is not None:
            counters["num_ready"] = self._queue.occupancy.num_ready
            counters["num_taken"] = self._queue.occupancy.num_taken
        return counters


def _children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid]
