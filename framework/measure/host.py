"""Facts about this machine and its processes."""

import math
import os
import platform
import resource
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from framework.measure.cgroup import Cgroups

CGROUPS = Cgroups()
# The share of the machine's memory that is kept for others, and the least bytes.
SPARE = 0.1
LEAST_SPARE = 1 << 29
PROCESS_CLOCK = 2  # linux/posix-timers_types.h: CPUCLOCK_SCHED of a whole process


def peak_rss_bytes() -> int:
    """Return the most physical memory this process ever held."""
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes


def rss_bytes(pid: int) -> int | None:
    """Return the physical memory of a process, shared pages included; None if it has ended."""
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None


def unshared_bytes(pid: int) -> int:
    """Return the physical memory that a process does not share; 0 if it has ended."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return memory.rss - getattr(memory, "shared", 0)


def process_cpu_s(pid: int) -> float | None:
    """Return the exact CPU time of a process; None if it has ended or this is not Linux.

    /proc and psutil count hundredths of a second.
    Source: glibc's ``clock_getcpuclockid``, which makes the number of a clock from the process id.
    """
    try:
        return time.clock_gettime(~pid << 3 | PROCESS_CLOCK)
    except (OSError, OverflowError, AttributeError):
        return None


def busy_cpu_s() -> float | None:
    """Return the CPU time that all programs took on the cores this process may run on.

    None if the system does not say.
    """
    return _cpu_s((1, 2, 3, 6, 7))  # user, nice, system, interrupts, soft interrupts


def stolen_cpu_s() -> float | None:
    """Return the CPU time that a hypervisor gave to other machines; None if it is unknown."""
    return _cpu_s((8,))


def _cpu_s(columns: tuple[int, ...]) -> float | None:
    """Return the seconds in these columns of /proc/stat, on the cores this process may run on.

    psutil does not number the cores, which matters if some are offline. Source: proc(5).
    """
    try:
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        ticks = sum(int(line[column]) for line in lines if line[0] in mine for column in columns)
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def boot_number() -> float:
    """Return a number of this host since it started: processes with the same number share a clock.

    Without Linux's random number it is made from the host's name.
    """
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        text = platform.node()
    return float(1 + zlib.crc32(text.encode()))


_before: list[int] = []  # the cores that this process had before ``run_on``


def num_cores() -> int:
    """Return the cores this process may use: its affinity, limited by its container's share."""
    allowed = os.cpu_count() or 1
    if _before:
        allowed = _before[0]
    elif hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    return max(1, math.ceil(min(allowed, CGROUPS.cores())))


def run_on(cores: set[int]) -> None:
    """Run all threads of this process, one of several ranks, on these cores only.

    ``num_cores`` still counts all that it had, which the ranks of this host share.
    """
    _before.append(num_cores())
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def move_threads(cores: set[int]) -> None:
    """Run all threads of this process and of its children on these cores only."""
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended
            for thread in process.threads():
                with suppress(OSError):
                    os.sched_setaffinity(thread.id, cores)


def cores_per_rank() -> int:
    """Return the cores of this process if the ranks of this machine share them evenly."""
    return max(1, num_cores() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def threads_per_rank() -> int:
    """Return how many threads torch uses for an operator: this rank's cores.

    A run of one process follows OMP_NUM_THREADS. A rank ignores it because torchrun sets it to 1.
    """
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if wish.isdecimal() and int(wish) and "RANK" not in os.environ:
        return int(wish)
    return cores_per_rank()


def total_memory_bytes() -> int:
    """Return the memory of this machine, or of this container if that is less."""
    total = psutil.virtual_memory().total
    return min(total, CGROUPS.memory_limit_bytes() or total)


def available_memory_bytes() -> int:
    """Return the memory that can be taken before anything is swapped or killed."""
    available = psutil.virtual_memory().available
    of_group = CGROUPS.available_memory_bytes()
    return available if of_group is None else min(available, of_group)


def spare_bytes() -> int:
    """Return the memory that is left to other programs by whoever takes all that is free."""
    return max(LEAST_SPARE, int(SPARE * total_memory_bytes()))


def machine() -> dict[str, Any]:
    """Return the facts that a measured figure must be read with."""
    return {
        "platform": platform.platform(),
        "processor": cpu_info("model name") or platform.processor(),
        "num_cores": num_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
    }


def cpu_info(name: str) -> str:
    """Return an entry of /proc/cpuinfo, of the first core; "" if it has none."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""
