"""What training takes of the machine: cores, memory, the GPU. Cheap enough to be asked at every report, and it never raises."""

import multiprocessing
import os
import time
from typing import final

import torch

from framework.measure.host import peak_rss_bytes

GPU_EVERY_S = 1.0  # NVML itself looks once in 1/6 to 1 s
OTHERS_EVERY_S = 1.0  # the kernel counts hundredths
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PROCESS_CLOCK = 2  # linux/posix-timers_types.h: CPUCLOCK_SCHED, of a whole process


@final
class Usage:
    """Of this process, its worker processes (those that ``multiprocessing``, and so torch, started here) and ``device``.

    ``lap`` takes 16 us, and 12 us more for each worker process.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpu = _GPU(device) if device.type == "cuda" else None
        self._others = None if "RANK" in os.environ else _Others()  # ranks would count each other
        self._at, self._cpu_s = time.perf_counter(), time.process_time()
        self._workers_cpu_s: dict[int, float] = {}
        self._peak_tree_bytes = 0

    def lap(self) -> dict[str, float]:
        """Since the last lap, or since this was made; what this machine cannot tell is left out.

        ``cpu_cores``: cores this process kept busy, its reader threads among them. ``workers_cpu_cores``: cores its worker processes did,
        all together; left out where there are none. ``others_cpu_cores``: those that other programs did, of the cores this process may run
        on; as seen once a second, and not of a run of several ranks. ``peak_rss_bytes``: the most physical memory this process ever held.
        ``peak_tree_rss_bytes``: that of the process and its workers together, as seen at laps; a page that processes share counts in
        each, so it is an upper bound. ``peak_device_bytes``: the most that tensors ever held on the device. ``gpu_busy_share``: NVML's
        share of the time in which the GPU ran any kernel, 0 to 1, which says nothing of how much of it; needs the package nvidia-ml-py.
        """
        now, cpu_s = time.perf_counter(), time.process_time()
        wall_s = max(now - self._at, 1e-9)
        own_s = cpu_s - self._cpu_s
        found = {"cpu_cores": own_s / wall_s, "peak_rss_bytes": float(peak_rss_bytes())}
        self._at, self._cpu_s = now, cpu_s
        pids = _worker_pids()
        found |= self._workers(pids, wall_s)
        if self._others is not None:
            found |= self._others.read(now, own_s + wall_s * found.get("workers_cpu_cores", 0.0))
        found |= self._tree(pids)
        return found if self._gpu is None else found | self._gpu.read(now)

    def _workers(self, pids: list[int], wall_s: float) -> dict[str, float]:
        """A worker that ended since the last lap takes what it did after it along."""
        before, self._workers_cpu_s = self._workers_cpu_s, {}
        for pid in pids:
            seconds = _process_cpu_s(pid)
            if seconds is not None:
                self._workers_cpu_s[pid] = seconds
        if not self._workers_cpu_s:
            return {}
        spent_s = sum(
            seconds - before.get(pid, 0.0) for pid, seconds in self._workers_cpu_s.items()
        )
        return {"workers_cpu_cores": spent_s / wall_s}

    def _tree(self, pids: list[int]) -> dict[str, float]:
        sizes = [_rss_bytes(pid) for pid in (os.getpid(), *pids)]
        if sizes[0] is None:
            return {}
        self._peak_tree_bytes = max(self._peak_tree_bytes, sum(size or 0 for size in sizes))
        return {"peak_tree_rss_bytes": float(max(self._peak_tree_bytes, peak_rss_bytes()))}


@final
class _Others:
    """CPU time of all programs less our own, on the cores this process may run on."""

    def __init__(self) -> None:
        self._at, self._busy_s, self._own_s = time.perf_counter(), _busy_s(), 0.0
        self._found: dict[str, float] = {}

    def read(self, now: float, own_s: float) -> dict[str, float]:
        """``own_s``: CPU time of this process and its workers since the last time."""
        self._own_s += own_s
        wall_s, busy_s = now - self._at, _busy_s() if now - self._at >= OTHERS_EVERY_S else None
        if busy_s is not None and self._busy_s is not None:
            self._found = {
                "others_cpu_cores": max(0.0, busy_s - self._busy_s - self._own_s) / wall_s
            }
            self._at, self._busy_s, self._own_s = now, busy_s, 0.0
        return self._found


def _busy_s() -> float | None:
    """CPU time that all programs took of the cores this process may run on; None where the system does not say. Source: proc(5), /proc/stat."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        # user, nice, system, (idle, waiting for a disk,) interrupts, soft interrupts
        ticks = sum(int(line[at]) for line in lines if line[0] in mine for at in (1, 2, 3, 6, 7))
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def _worker_pids() -> list[int]:
    return [process.pid for process in multiprocessing.active_children() if process.pid is not None]


def _process_cpu_s(pid: int) -> float | None:
    """CPU time of any process, all its threads, exactly; None where it is gone or the system is not Linux.

    Its clock's number is made of its id, as glibc's ``clock_getcpuclockid`` does; /proc would say it in hundredths of a second.
    """
    try:
        return time.clock_gettime(~pid << 3 | PROCESS_CLOCK)
    except (OSError, OverflowError, AttributeError):
        return None


def _rss_bytes(pid: int) -> int | None:
    """Physical memory of a process now, shared pages included; None where it is gone or there is no /proc."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


@final
class _GPU:
    """Memory by torch's count, utilization by NVML's, which is asked once a second at most, and never again where it is not there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._asked_at = float("-inf")
        self._share: float | None = None
        self._there = True
        self._ask()  # the first time loads NVML, milliseconds; what it says is of before the run
        self._share = None

    def read(self, now: float) -> dict[str, float]:
        if self._there and now - self._asked_at >= GPU_EVERY_S:
            self._asked_at = now
            self._ask()
        found = {"peak_device_bytes": float(torch.cuda.max_memory_allocated(self._device))}
        return found if self._share is None else {**found, "gpu_busy_share": self._share}

    def _ask(self) -> None:
        try:
            self._share = torch.cuda.utilization(self._device) / 100
        except Exception:  # noqa: BLE001  # no package, no driver, no right to ask, a slice of a GPU: NVML has an error for each
            self._share, self._there = None, False
