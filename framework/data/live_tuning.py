"""``workers.num=auto``: watch a run while it trains, and change how its records are read."""

import multiprocessing
import time
from collections.abc import Callable
from typing import Any, final

from framework.contracts.waits import Waits
from framework.data.source import WorkerSource
from framework.errors import ConfigError
from framework.loader.prefetch import PrefetchLoader
from framework.loader.tuner import Observation, ReadPlan, Tuner, TunerLimits
from framework.measure.host import (
    available_memory_bytes,
    process_cpu_s,
    rss_bytes,
    total_memory_bytes,
)

LOOK_S = 4.0  # between two observations; each takes about a millisecond
LEAST_BATCHES = 4  # of an observation
MOST_PER_CORE = 4  # workers; more of them wait for storage than for cores
LEAST_MOST = 8
MOST_WORKERS = 128
BUDGET_SHARE = 0.25  # of the free memory: what may be added
MOST_NOTED = 100  # decisions in the summary


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
        self._queue = loader if isinstance(loader, PrefetchLoader) else None
        self._waits = waits
        self._say = say
        self._cores = cores
        limits = TunerLimits(
            num_cores=cores,
            most_workers=min(MOST_WORKERS, max(LEAST_MOST, MOST_PER_CORE * cores)),
            budget_bytes=BUDGET_SHARE * available_memory_bytes(),
            are_processes=source.workers.kind == "process",
        )
        self._tuner = Tuner(self._present_plan(), limits)
        self._began_at = time.perf_counter()
        self._before = self._counters()
        self.decisions: list[dict[str, Any]] = []
        self._num_taken = 0
        waits.call(self.look)

    def _present_plan(self) -> ReadPlan:
        workers = self._source.workers
        depth = self._queue.depth if self._queue is not None else 0
        return ReadPlan(workers.num, workers.ahead, depth)

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
        waits, before = self._waits, self._before
        num_batches = waits.num_batches - before["num_batches"]
        seconds = waits.wait_s - waits.start_s + waits.step_s - before["train_s"]
        if num_batches < LEAST_BATCHES or seconds < LOOK_S / 2:
            return now + LOOK_S / 4
        self._before = self._counters()
        change = {name: value - before[name] for name, value in self._before.items()}
        decision = self._tuner.observe(self._observed(change))
        if decision is not None:
            old, new = self._present_plan(), decision.plan
            self._source.workers.change(new.num_workers, new.ahead)
            if self._queue is not None and new.depth != old.depth:
                self._queue.deepen(new.depth)
            text = f"{old.changes_to(new)}: {decision.why}"
            at_s = round(time.perf_counter() - self._began_at, 1)
            self.decisions.append({"at_s": at_s, "text": text})
            self._say(f"note: {text}")
        return now + LOOK_S

    def _observed(self, change: dict[str, float]) -> Observation:
        seconds = max(change["train_s"], 1e-9)
        wall_s = max(change["at"], 1e-9)
        queue_share = None
        if self._queue is not None and change["num_taken"]:
            queue_share = change["num_ready"] / change["num_taken"] / max(1, self._queue.depth)
        return Observation(
            seconds=seconds,
            num_batches=int(change["num_batches"]),
            wait_share=change["wait_s"] / seconds,
            busy_workers=change["read_s"] / wall_s,
            queue_share=queue_share,
            free_cores=self._cores - change["own_s"] / wall_s,
            free_memory=available_memory_bytes() / total_memory_bytes(),
            batch_bytes=self._source.batch_bytes,
            num_slices=self._source.num_slices,
            worker_bytes=max(
                (float(rss_bytes(pid, with_shared=False)) for pid in _children()), default=0.0
            ),
            is_changing=self._source.workers.is_changing,
        )

    def _counters(self) -> dict[str, float]:
        """Return sums that only grow, but for those of children that have ended."""
        waits, queue = self._waits, self._queue
        own_s = time.process_time() + sum(process_cpu_s(pid) or 0.0 for pid in _children())
        wait_s = waits.wait_s - waits.start_s  # nothing is ready for an epoch's first batch
        return {
            "at": time.perf_counter(),
            "wait_s": wait_s,
            "train_s": wait_s + waits.step_s,
            "num_batches": waits.num_batches,
            "read_s": sum(self._source.workers.stages.sums_s.copy().values()),
            "own_s": own_s,
            "num_ready": queue.occupancy.num_ready if queue is not None else 0,
            "num_taken": queue.occupancy.num_taken if queue is not None else 0,
        }


def _children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid]
