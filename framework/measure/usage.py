"""What training takes of the machine: cores, memory and the GPU.

Measuring is cheap enough for every report, and it never raises.
"""

import multiprocessing
import os
import time
from typing import final

import torch

from framework.measure.host import busy_cpu_s, peak_rss_bytes, process_cpu_s, rss_bytes

GPU_EVERY_S = 1.0  # NVML itself samples once in 1/6 to 1 s
OTHERS_EVERY_S = 1.0  # the kernel counts hundredths


@final
class Usage:
    """Usage by this process, by the workers that ``multiprocessing`` started, and of ``device``."""

    def __init__(self, device: torch.device) -> None:
        self._gpu: _GPU | None = None
        if device.type == "cuda":
            self._gpu = _GPU(device)
        self._others: _Others | None = None
        if "RANK" not in os.environ:  # ranks would count each other
            self._others = _Others()
        self._at = time.perf_counter()
        self._cpu_s = time.process_time()
        self._workers_cpu_s: dict[int, float] = {}
        self._peak_tree_bytes = 0

    def lap(self) -> dict[str, float]:
        """Return the usage since the last lap, without what this machine cannot tell.

        Returns:
            cpu_cores: Cores that this process kept busy, reader threads included.
            workers_cpu_cores: Cores that all its worker processes kept busy together.
            others_cpu_cores: Cores that other programs kept busy, of those this process may use.
                Measured once a second, and only in a run of one rank.
            peak_rss_bytes: The most physical memory this process ever held.
            peak_tree_rss_bytes: The most that the process and its workers held together at a lap.
                An upper bound: a page that processes share counts in each.
            peak_device_bytes: The most that tensors ever held on the device.
            gpu_busy_share: NVML's share of the time in which the GPU ran any kernel, 0 to 1.
                It does not say how much of the GPU. Needs the package nvidia-ml-py.
        """
        now = time.perf_counter()
        cpu_s = time.process_time()
        wall_s = max(now - self._at, 1e-9)
        own_s = cpu_s - self._cpu_s
        self._at = now
        self._cpu_s = cpu_s
        usage = {"cpu_cores": own_s / wall_s, "peak_rss_bytes": float(peak_rss_bytes())}
        pids = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        workers_s = self._workers_s(pids)
        if workers_s is not None:
            usage["workers_cpu_cores"] = workers_s / wall_s
        if self._others is not None:
            usage |= self._others.read(now, own_s + (workers_s or 0.0))
        usage |= self._tree(pids)
        if self._gpu is not None:
            usage |= self._gpu.read(now)
        return usage

    def _workers_s(self, pids: list[int]) -> float | None:
        """Return the CPU time of the workers since the last lap, without workers that ended."""
        before = self._workers_cpu_s
        times = {pid: process_cpu_s(pid) for pid in pids}
        now = {pid: seconds for pid, seconds in times.items() if seconds is not None}
        self._workers_cpu_s = now
        if not now:
            return None
        return sum(seconds - before.get(pid, 0.0) for pid, seconds in now.items())

    def _tree(self, pids: list[int]) -> dict[str, float]:
        own = rss_bytes(os.getpid())
        if own is None:
            return {}
        tree = own + sum(rss_bytes(pid) or 0 for pid in pids)
        self._peak_tree_bytes = max(self._peak_tree_bytes, tree)
        return {"peak_tree_rss_bytes": float(max(self._peak_tree_bytes, peak_rss_bytes()))}


@final
class _Others:
    """CPU time of all other programs on the cores that this process may run on."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._busy_s = busy_cpu_s()
        self._own_s = 0.0
        self._usage: dict[str, float] = {}

    def read(self, now: float, own_s: float) -> dict[str, float]:
        """Return the newest figure. ``own_s``: our CPU time since the last call."""
        self._own_s += own_s
        wall_s = now - self._at
        if wall_s < OTHERS_EVERY_S:
            return self._usage
        busy_s = busy_cpu_s()
        if busy_s is not None and self._busy_s is not None:
            others_s = max(0.0, busy_s - self._busy_s - self._own_s)
            self._usage = {"others_cpu_cores": others_s / wall_s}
            self._at = now
            self._busy_s = busy_s
            self._own_s = 0.0
        return self._usage


@final
class _GPU:
    """Peak memory as torch counts it, and utilization from NVML, asked once a second at most."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_nvml = True
        self._ask()  # loads NVML, which takes milliseconds
        self._share: float | None = None  # the first answer is about the time before the run
        self._asked_at = float("-inf")

    def read(self, now: float) -> dict[str, float]:
        if self._has_nvml and now - self._asked_at >= GPU_EVERY_S:
            self._asked_at = now
            self._ask()
        usage = {"peak_device_bytes": float(torch.cuda.max_memory_allocated(self._device))}
        if self._share is not None:
            usage["gpu_busy_share"] = self._share
        return usage

    def _ask(self) -> None:
        try:
            self._share = torch.cuda.utilization(self._device) / 100
        except Exception:  # noqa: BLE001  # NVML raises many kinds
            self._share = None
            self._has_nvml = False
