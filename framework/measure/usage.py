"""Use of the machine: cheap figures at every report of training, and all of it while measuring."""

import multiprocessing
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import psutil
import torch

from framework.measure.host import Cgroups, cores_cpu_s, peak_rss_bytes, process_cpu_s, rss_bytes

OTHERS_EVERY_S = 1.0  # the kernel counts hundredths
PRESSURE = Path("/proc/pressure/memory")
NUM_PROGRAMS = 3  # other programs that are named
LEAST_CORES = 0.05  # a program that keeps less busy is not named


@final
class Usage:
    """Usage by this process, by the workers that ``multiprocessing`` started, and of ``device``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._at = self._others_at = time.perf_counter()
        self._cpu_s = time.process_time()
        self._workers_cpu_s: dict[int, float] = {}
        self._peak_tree_bytes = 0
        self._busy_s, _ = cores_cpu_s()  # of all programs
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
            others_cpu_cores: Cores that other programs kept busy, of those this process may use;
                only in a run of one rank.
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
        tree = sum(map(rss_bytes, (os.getpid(), *pids)))
        self._peak_tree_bytes = max(self._peak_tree_bytes, tree, peak_rss_bytes())
        usage["peak_tree_rss_bytes"] = float(self._peak_tree_bytes)
        self._own_s += own_s
        others_wall_s = now - self._others_at
        # Ranks would count each other.
        if "RANK" not in os.environ and others_wall_s >= OTHERS_EVERY_S:
            busy_s, _ = cores_cpu_s()
            others_s = max(0.0, busy_s - self._busy_s - self._own_s)
            self._slow["others_cpu_cores"] = others_s / others_wall_s
            self._others_at = now
            self._busy_s = busy_s
            self._own_s = 0.0
        if self._device.type == "cuda":
            usage["peak_device_bytes"] = float(torch.cuda.max_memory_allocated(self._device))
            if self._asks_nvml and now - self._asked_at >= 1.0:  # NVML itself samples as rarely
                self._asked_at = now
                self._slow |= self._gpu_busy_share()
        return usage | self._slow

    def _gpu_busy_share(self) -> dict[str, float]:
        if self._asks_nvml:
            try:
                return {"gpu_busy_share": torch.cuda.utilization(self._device) / 100}
            except Exception:  # noqa: BLE001  # NVML raises many kinds
                self._asks_nvml = False
                self._slow.pop("gpu_busy_share", None)
        return {}


class Program(NamedTuple):
    """Another program that kept cores busy."""

    pid: int
    name: str
    cores: float


@dataclass(frozen=True)
class MachineUse:
    """How the machine was used between two moments."""

    wall_s: float
    own_cores: float = 0.0  # that this process and its children kept busy
    waited_cores: float = 0.0  # of our threads: those that could run but had no core
    others_cores: float = 0.0  # that other programs kept busy, of those this process may use
    stolen_cores: float = 0.0  # that a hypervisor gave to other machines
    programs: tuple[Program, ...] = ()  # the busiest other programs
    throttled_share: float = 0.0  # of the quota's periods: those in which the quota was used up
    swapped_bytes: float = 0.0  # into and out of swap, by all programs
    own_swap_bytes: int = 0  # of this process and its children, at the end
    stalled_share: float = 0.0  # of the time: some program waited for memory


@final
class MachineWatch:
    """Reads the machine's counters, now and at each lap. A lap takes a few milliseconds."""

    def __init__(self, cgroups: Cgroups | None = None, pressure: Path = PRESSURE) -> None:
        self._cgroups = cgroups or Cgroups()
        self._pressure = pressure
        self._counted: dict[str, float] = {}
        self._programs: dict[tuple[int, str], float] = {}  # CPU seconds of all others
        self.lap()

    def lap(self) -> MachineUse:
        """Return how the machine was used since the last lap."""
        me = psutil.Process()
        own = [me, *me.children(recursive=True)]
        now = self._counters(own)
        grown = {name: max(0.0, now[name] - self._counted.get(name, now[name])) for name in now}
        self._counted = now
        wall_s = max(grown["at"], 1e-9)
        before = self._programs
        self._programs = {}
        programs: list[Program] = []
        mine = {process.pid for process in own}
        for process in psutil.process_iter(["name", "cpu_times"]):
            name, cpu = process.info["name"], process.info["cpu_times"]
            if process.pid not in mine and cpu is not None:
                cpu_s = self._programs[process.pid, name] = cpu.user + cpu.system
                cores = (cpu_s - before.get((process.pid, name), cpu_s)) / wall_s
                if cores >= LEAST_CORES:
                    programs.append(Program(process.pid, name, cores))
        programs.sort(key=lambda program: -program.cores)
        own_swap_bytes = 0
        for process in own:
            with suppress(psutil.Error):  # it has ended
                own_swap_bytes += process.memory_full_info().swap
        return MachineUse(
            wall_s=wall_s,
            own_cores=grown["own_s"] / wall_s,
            waited_cores=grown["waited_s"] / wall_s,
            others_cores=max(0.0, grown["busy_s"] - grown["own_s"]) / wall_s,
            stolen_cores=grown["stolen_s"] / wall_s,
            programs=tuple(programs[:NUM_PROGRAMS]),
            throttled_share=grown["throttled"] / max(1.0, grown["periods"]),
            swapped_bytes=grown["swapped_bytes"],
            own_swap_bytes=own_swap_bytes,
            stalled_share=min(1.0, grown["stalled_s"] / wall_s),
        )

    def _counters(self, own: list[psutil.Process]) -> dict[str, float]:
        swap, quota = psutil.swap_memory(), self._cgroups.throttle()
        children = [process_cpu_s(process.pid) or 0.0 for process in own[1:]]
        times = os.times()
        ended_s = times.children_user + times.children_system
        busy_s, stolen_s = cores_cpu_s()
        waited_ns = 0  # by our threads for a core (the kernel's scheduler/sched-stats.rst)
        for process in own:
            with suppress(OSError):  # it has ended
                for thread in os.listdir(f"/proc/{process.pid}/task"):
                    with suppress(OSError, ValueError, IndexError):
                        file = Path(f"/proc/{process.pid}/task/{thread}/schedstat")
                        waited_ns += int(file.read_text("ascii").split()[1])
        stalled_us = 0
        with suppress(OSError, IndexError, ValueError):  # the kernel's accounting/psi.rst
            some = self._pressure.read_text(encoding="ascii").splitlines()[0]
            stalled_us = int(some.rpartition("total=")[2])
        return {
            "at": time.perf_counter(),
            "own_s": time.process_time() + ended_s + sum(children),
            "waited_s": waited_ns / 1e9,
            "busy_s": busy_s,
            "stolen_s": stolen_s,
            "periods": 0 if quota is None else quota.periods,
            "throttled": 0 if quota is None else quota.throttled,
            "swapped_bytes": swap.sin + swap.sout,
            "stalled_s": stalled_us / 1e6,
        }
