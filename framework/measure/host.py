"""Facts of this machine and process."""

import math
import os
import platform
import resource
import sys
from typing import Any

import torch


def peak_rss_bytes() -> int:
    """The most physical memory this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def num_cores() -> int:
    """Cores this process may use: those it may run on, and no more than its container's share of time (cgroup)."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(
        1, math.ceil(min(allowed, _cgroup_cores()))
    )  # infinite where there is no limit, which cannot be rounded


def cores_per_rank() -> int:
    """The cores of this process where the ranks of this machine share them."""
    return max(1, num_cores() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def threads_per_rank() -> int:
    """Threads that torch shares an operator among: this rank's cores; in a run of one process OMP_NUM_THREADS, where somebody has set it
    (torchrun does so itself, to 1, for all who say nothing).
    """
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return (
        int(wish)
        if wish.isdecimal() and int(wish) and "RANK" not in os.environ
        else cores_per_rank()
    )


def _cgroup_cores() -> float:
    """The container's limit, in cores; infinite where there is none. Source: the kernel's cgroup v2 (cpu.max) and v1 documents."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        try:
            quota, period = (
                _word(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period")
            )
        except OSError:
            return math.inf
    return int(quota) / int(period) if quota.isdigit() else math.inf


def _word(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def machine() -> dict[str, Any]:
    """What a figure must be read with."""
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "num_cores": num_cores(),
        "memory_bytes": memory_bytes,
        "gpus": gpus,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
