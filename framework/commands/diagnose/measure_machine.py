"""Measure what the machine gives a run, and what more or less of it would change."""

import math
import os
import random
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from framework.data.source import StoreSource
from framework.diagnosis.facts import MachineFacts
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


def measure_machine(
    probe: Probe, seconds: float, use: MachineUse, say: Callable[[str], None] | None
) -> MachineFacts:
    """Describe a run's machine, and try changes. Whatever is changed is changed back.

    Args:
        probe: The run.
        seconds: The time for the whole diagnosis of its parts.
        use: How the machine was used while the run trained.
        say: Announces what is measured. None: there is no time to try changes.
    """
    total = total_memory_bytes()
    quota = CGROUPS.cores()
    tried: dict[str, Any] = {}
    if say is not None:
        say("threads, cores and the disk")
        tried = {
            **_threads(probe, seconds, use),
            **_opencv(probe, seconds),
            **_cores(probe, seconds, use),
            "disk": _disk(probe, DISK * seconds),
        }
    known: dict[str, Any] = {
        "quota_cores": quota if quota < math.inf else None,
        "memory_bytes": total,
        "free_memory_bytes": available_memory_bytes(),
        "in_group": CGROUPS.memory_limit_bytes() == total,
        "num_threads": torch.get_num_threads(),
        "all_cores": os.cpu_count() or 1,
        "allowed_cores": len(os.sched_getaffinity(0)),
    }
    return MachineFacts(use, **known, **tried)


def _threads(probe: Probe, seconds: float, use: MachineUse) -> dict[str, Any]:
    """Compute with a thread per core, or with fewer if other programs take cores."""
    fewer = cores = num_cores()
    threads = torch.get_num_threads()
    taken = use.others_cores + use.stolen_cores
    if threads <= cores and taken > CROWDED:
        fewer = max(1, cores - round(taken))
    known: dict[str, Any] = {"fewer_threads": min(fewer, threads)}
    if fewer < threads:
        known["fewer_threads_gain"], known["fewer_threads_cores"] = _in_turn(
            lambda: probe.compute(TURN * seconds, BURN_IN * seconds),
            lambda: _set_while(torch.set_num_threads, fewer, threads),
        )
    return known


def _opencv(probe: Probe, seconds: float) -> dict[str, Any]:
    """Train without OpenCV's own threads, if they and the workers are more than the cores.

    Worker processes have settings of their own, which this process cannot change. The rates are not
    measured in turn: threads that were off and on again take turns with ours in another way.
    """
    opencv: Any = sys.modules.get("cv2")
    if opencv is None:
        return {}
    threads = opencv.getNumThreads()
    known: dict[str, Any] = {"opencv_threads": threads}
    source = probe.assembly.train_source
    if not isinstance(source, StoreSource) or threads <= 1:
        return known
    num = source.workers.num
    if (source.workers.kind == "process" and num) or threads * max(1, num) <= num_cores():
        return known
    timing = (TURNS * TURN_OF_TRAINING * seconds, DRAIN * seconds)
    before = probe.train(*timing).records_per_s
    with _set_while(opencv.setNumThreads, 0, threads):
        known["no_opencv_gain"] = probe.train(*timing).records_per_s / before
    return known


def _cores(probe: Probe, seconds: float, use: MachineUse) -> dict[str, Any]:
    """Train on all cores, if the affinity mask has fewer and training keeps those busy.

    All threads of this process and its children move, and an operator has a thread for each core.
    """
    mine = os.sched_getaffinity(0)
    every = set(range(os.cpu_count() or 1))
    if len(mine) >= len(every) or use.own_cores + use.waited_cores <= CORES_USED * len(mine):
        return {}
    threads = torch.get_num_threads()

    @contextmanager
    def on_every_core() -> Generator[None]:
        move_threads(every)
        try:
            with _set_while(torch.set_num_threads, len(os.sched_getaffinity(0)), threads):
                yield
        finally:
            move_threads(mine)

    gain, _ = _in_turn(
        lambda: probe.train(TURN_OF_TRAINING * seconds, DRAIN * seconds), on_every_core
    )
    return {"all_cores_gain": gain}


def _in_turn(
    measure: Callable[[], Rate], change: Callable[[], AbstractContextManager[None]]
) -> tuple[float, float]:
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
def _set_while(put: Callable[[int], object], value: int, before: int) -> Generator[None]:
    put(value)
    try:
        yield
    finally:
        put(before)


def _disk(probe: Probe, seconds: float) -> DiskRate | None:
    """Measure reading records that a store has in files."""
    source = probe.assembly.train_source
    if not isinstance(source, StoreSource):
        return None
    store, draw = source.store, random.Random(0)  # noqa: S311  # no secret
    num_records = store.manifest.num_records
    if isinstance(store, FolderStore):
        numbers = draw.sample(range(num_records), min(NUM_PIECES, num_records))
        names = map(store.name, numbers)
        return disk_rate([Piece(name, 0, os.path.getsize(name)) for name in names], seconds)
    files = [file for file in files_of(str(probe.config["data"]["train"])) if os.path.isfile(file)]
    if not files:
        return None
    # Pieces of the largest file, each as long as the mean record. A shard has some of the records.
    path = max(files, key=os.path.getsize)
    length = max(1, sum(map(os.path.getsize, files)) // num_records)
    places = range(0, max(1, os.path.getsize(path) - length), length)
    starts = draw.sample(places, min(NUM_PIECES, len(places)))
    return disk_rate([Piece(path, start, length) for start in starts], seconds)
