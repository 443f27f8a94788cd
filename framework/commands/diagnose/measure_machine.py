"""Measure what the machine gives a run, and what more or less of it would change."""

import math
import os
import random
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from framework.commands.diagnose.machine_facts import MachineFacts
from framework.data.source import StoreSource
from framework.measure.disk import DiskRate, Piece, disk_rate
from framework.measure.host import (
    CGROUPS,
    available_memory_bytes,
    move_threads,
    num_cores,
    total_memory_bytes,
)
from framework.measure.machine_watch import MachineUse
from framework.store.folder_store import FolderStore
from framework.store.open_store import files_of
from framework.trials.probe import Probe, Rate

# Shares of the given seconds.
TURN = 0.02
# Batches that were prepared before a change wait in the loader, and are trained on first.
TURN_OF_TRAINING = 0.1
BURN_IN = 0.01
DRAIN = 0.03
DISK = 0.03
TURNS = 2
NUM_PIECES = 4096
# If other programs keep more of a core busy, fewer threads are tried.
CROWDED = 0.5
# If training keeps a smaller share of its cores busy, more cores do not help.
CORES_USED = 0.7

Measure = Callable[[], Rate]
Say = Callable[[str], None]
Change = Callable[[], AbstractContextManager[None]]


def measure_machine(
    probe: Probe, seconds: float, use: MachineUse, has_time: bool, say: Say
) -> MachineFacts:
    """Describe a run's machine, and try changes. Whatever is changed is changed back.

    Args:
        probe: The run.
        seconds: The time for the whole diagnosis of its parts.
        use: How the machine was used while the run trained.
        has_time: Whether to try changes. The rest takes no time.
        say: Announces what is measured.
    """
    total = total_memory_bytes()
    quota = CGROUPS.cores()
    tried: dict[str, Any] = {}
    if has_time:
        say("threads, cores and the disk")
        tried = {
            **_threads(probe, seconds, use),
            **_opencv(probe, seconds),
            **_cores(probe, seconds, use),
            "disk": _disk(probe, DISK * seconds),
        }
    known: dict[str, Any] = {
        "use": use,
        "quota_cores": quota if quota < math.inf else None,
        "memory_bytes": total,
        "free_memory_bytes": available_memory_bytes(),
        "in_group": CGROUPS.memory_limit_bytes() == total,
        "num_threads": torch.get_num_threads(),
        "all_cores": os.cpu_count() or 1,
        "allowed_cores": len(os.sched_getaffinity(0)),
    }
    return MachineFacts(**{**known, **tried})


def _threads(probe: Probe, seconds: float, use: MachineUse) -> dict[str, Any]:
    """Compute with a thread per core, or with fewer if other programs take cores."""
    cores = num_cores()
    threads = torch.get_num_threads()
    fewer = cores
    if threads <= cores and use.others_cores + use.stolen_cores > CROWDED:
        fewer = max(1, cores - round(use.others_cores + use.stolen_cores))
    known: dict[str, Any] = {"fewer_threads": min(fewer, threads)}
    if fewer < threads:
        known["fewer_threads_gain"], known["fewer_threads_cores"] = _in_turn(
            lambda: probe.compute(TURN * seconds, BURN_IN * seconds), lambda: torch_threads(fewer)
        )
    return known


def _opencv(probe: Probe, seconds: float) -> dict[str, Any]:
    """Train without OpenCV's own threads, if they and the workers are more than the cores.

    Worker processes have settings of their own, which this process cannot change.
    """
    opencv: Any = sys.modules.get("cv2")
    if opencv is None:
        return {}
    threads = opencv.getNumThreads()
    known: dict[str, Any] = {"opencv_threads": threads}
    source = probe.assembly.train_source
    if isinstance(source, StoreSource) and threads > 1:
        is_process = source.workers.kind == "process" and source.workers.num
        if not is_process and threads * max(1, source.workers.num) > num_cores():
            known["no_opencv_gain"] = _gain_without_opencv(probe, seconds, opencv)
    return known


def _gain_without_opencv(probe: Probe, seconds: float, opencv: Any) -> float:
    """Return the factor on the rate of training that switching OpenCV's threads off makes.

    Not in turn: threads that were off and on again take turns with ours in another way.
    """
    timing = (TURNS * TURN_OF_TRAINING * seconds, DRAIN * seconds)
    before = probe.train(*timing).records_per_s
    with _no_opencv(opencv):
        return probe.train(*timing).records_per_s / before


def _cores(probe: Probe, seconds: float, use: MachineUse) -> dict[str, Any]:
    """Train on all cores, if the affinity mask has fewer and training keeps those busy."""
    mine = os.sched_getaffinity(0)
    every = set(range(os.cpu_count() or 1))
    if len(mine) < len(every) and use.own_cores + use.waited_cores > CORES_USED * len(mine):
        gain = _gain_of_training(probe, seconds, lambda: _on_cores(every))
        return {"all_cores_gain": gain}
    return {}


def _gain_of_training(probe: Probe, seconds: float, change: Change) -> float:
    return _in_turn(lambda: probe.train(TURN_OF_TRAINING * seconds, DRAIN * seconds), change)[0]


def _in_turn(measure: Measure, change: Change) -> tuple[float, float]:
    """Return the factor on a rate that a change makes, and the cores that are then kept busy."""
    rates = {False: 0.0, True: 0.0}
    cores = 0.0
    for number in range(2 * TURNS):
        changed = number % 2 == 1
        with change() if changed else nullcontext():
            rate = measure()
        rates[changed] += rate.records_per_s
        cores += changed * rate.busy_cores / TURNS
    return rates[True] / rates[False], cores


@contextmanager
def torch_threads(count: int) -> Generator[None]:
    """Let torch use ``count`` threads for an operator."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_opencv(opencv: Any) -> Generator[None]:
    before = opencv.getNumThreads()
    opencv.setNumThreads(0)
    try:
        yield
    finally:
        opencv.setNumThreads(before)


@contextmanager
def _on_cores(cores: set[int]) -> Generator[None]:
    """Run all threads of this process and its children on ``cores``, with a thread for each."""
    before = os.sched_getaffinity(0)
    move_threads(cores)
    try:
        with torch_threads(len(os.sched_getaffinity(0))):
            yield
    finally:
        move_threads(before)


def _disk(probe: Probe, seconds: float) -> DiskRate | None:
    """Measure reading records that a store has in files."""
    source = probe.assembly.train_source
    if not isinstance(source, StoreSource):
        return None
    store = source.store
    num_records = store.manifest.num_records
    if isinstance(store, FolderStore):
        names = [store.name(number) for number in _sample(range(num_records))]
        return disk_rate([Piece(name, 0, os.path.getsize(name)) for name in names], seconds)
    files = [file for file in files_of(str(probe.config["data"]["train"])) if os.path.isfile(file)]
    if not files:
        return None
    return disk_rate(_records_of_largest(files, num_records), seconds)


def _records_of_largest(files: Sequence[str], num_records: int) -> list[Piece]:
    """Return pieces of the largest file of a store, each as long as the mean record."""
    path = max(files, key=os.path.getsize)
    size = os.path.getsize(path)
    length = max(1, sum(map(os.path.getsize, files)) // num_records)
    places = range(0, max(1, size - length), length)  # a shard has some of the records
    return [Piece(path, start, length) for start in _sample(places)]


def _sample(places: range) -> list[int]:
    draw = random.Random(0)  # noqa: S311  # no secret
    return draw.sample(places, min(NUM_PIECES, len(places)))
