"""What training takes of the machine: cores, memory and the GPU, cheaply at every report."""

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
        self._device = device
        self._at = self._others_at = time.perf_counter()
        self._cpu_s = time.process_time()
        self._workers_cpu_s: dict[int, float] = {}
        self._peak_tree_bytes = 0
        self._busy_s = busy_cpu_s()  # of all programs
        self._own_s = 0.0  # of ours since then
        self._slow: dict[str, float] = {}  # figures that are not measured at every lap
        self._asks_nvml = device.type == "cuda"
        self._asked_at = float("-inf")
        self._gpu_busy_share()  # loads NVML, and its first answer is about the time before the run

    def lap(self) -> dict[str, float]:
        """Return the usage since the last lap, without what this machine cannot tell.

        Returns:
            cpu_cores: Cores that this process kept busy, reader threads included.
            workers_cpu_cores: Cores that all its worker processes kept busy together.
            others_cpu_cores: Cores that other programs kept busy, of those this process may use.
                Measured once a second, and only in a run of one rank.
            peak_rss_bytes: The most physical memory this process ever held.
            peak_tree_rss_bytes: The same with its workers, at a lap. Shared pages count in each.
            peak_device_bytes: The most that tensors ever held on the device.
            gpu_busy_share: NVML's share of the time in which the GPU ran any kernel, 0 to 1.
        """
        now, cpu_s = time.perf_counter(), time.process_time()
        wall_s = max(now - self._at, 1e-9)
        own_s = cpu_s - self._cpu_s
        self._at = now
        self._cpu_s = cpu_s
        usage = {"cpu_cores": own_s / wall_s, "peak_rss_bytes": float(peak_rss_bytes())}
        pids = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        before_s = self._workers_cpu_s
        times_s = {pid: process_cpu_s(pid) for pid in pids}
        self._workers_cpu_s = {pid: s for pid, s in times_s.items() if s is not None}
        if self._workers_cpu_s:  # workers that have ended do not count
            workers_s = sum(s - before_s.get(pid, 0.0) for pid, s in self._workers_cpu_s.items())
            usage["workers_cpu_cores"] = workers_s / wall_s
            own_s += workers_s
        tree = sum(rss_bytes(pid) or 0 for pid in (os.getpid(), *pids))
        self._peak_tree_bytes = max(self._peak_tree_bytes, tree, peak_rss_bytes())
        usage["peak_tree_rss_bytes"] = float(self._peak_tree_bytes)
        if "RANK" not in os.environ:  # ranks would count each other
            self._measure_others(now, own_s)
        if self._device.type == "cuda":
            usage["peak_device_bytes"] = float(torch.cuda.max_memory_allocated(self._device))
            if self._asks_nvml and now - self._asked_at >= GPU_EVERY_S:
                self._asked_at = now
                self._slow |= self._gpu_busy_share()
        return usage | self._slow

    def _measure_others(self, now: float, own_s: float) -> None:
        """Measure what other programs took if this is due. ``own_s``: ours since the last call."""
        self._own_s += own_s
        wall_s = now - self._others_at
        if wall_s < OTHERS_EVERY_S:
            return
        busy_s = busy_cpu_s()
        others_s = max(0.0, busy_s - self._busy_s - self._own_s)
        self._slow["others_cpu_cores"] = others_s / wall_s
        self._others_at = now
        self._busy_s = busy_s
        self._own_s = 0.0

    def _gpu_busy_share(self) -> dict[str, float]:
        if self._asks_nvml:
            try:
                return {"gpu_busy_share": torch.cuda.utilization(self._device) / 100}
            except Exception:  # noqa: BLE001  # NVML raises many kinds
                self._asks_nvml = False
                self._slow.pop("gpu_busy_share", None)
        return {}
