"""What the machine did while something was measured: other programs, quota, swap and memory."""

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import psutil

from framework.measure.host import Cgroups, busy_cpu_s, process_cpu_s, stolen_cpu_s

PRESSURE = Path("/proc/pressure/memory")
NUM_PROGRAMS = 3  # other programs that are named
LEAST_CORES = 0.05  # a program that keeps less busy is not named


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
        self._programs = _cpu_s_of_others({process.pid for process in own})
        programs = [
            Program(*key, (cpu_s - before.get(key, cpu_s)) / wall_s)
            for key, cpu_s in self._programs.items()
        ]
        programs = [program for program in programs if program.cores >= LEAST_CORES]
        programs.sort(key=lambda program: -program.cores)
        return MachineUse(
            wall_s=wall_s,
            own_cores=grown["own_s"] / wall_s,
            waited_cores=grown["waited_s"] / wall_s,
            others_cores=max(0.0, grown["busy_s"] - grown["own_s"]) / wall_s,
            stolen_cores=grown["stolen_s"] / wall_s,
            programs=tuple(programs[:NUM_PROGRAMS]),
            throttled_share=grown["throttled"] / max(1.0, grown["periods"]),
            swapped_bytes=grown["swapped_bytes"],
            own_swap_bytes=sum(map(_swap_bytes, own)),
            stalled_share=min(1.0, grown["stalled_s"] / wall_s),
        )

    def _counters(self, own: list[psutil.Process]) -> dict[str, float]:
        """Return counters that only grow; 0 for what this system does not count."""
        swap, quota = psutil.swap_memory(), self._cgroups.throttle()
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        children = [process_cpu_s(process.pid) or 0.0 for process in own[1:]]
        stalled_us = 0
        with suppress(OSError, IndexError, ValueError):  # the kernel's accounting/psi.rst
            some = self._pressure.read_text(encoding="ascii").splitlines()[0]
            stalled_us = int(some.rpartition("total=")[2])
        return {
            "at": time.perf_counter(),
            "own_s": time.process_time() + ended.ru_utime + ended.ru_stime + sum(children),
            "waited_s": sum(map(_waited_s, own)),
            "busy_s": busy_cpu_s(),
            "stolen_s": stolen_cpu_s(),
            "periods": 0 if quota is None else quota.periods,
            "throttled": 0 if quota is None else quota.throttled,
            "swapped_bytes": swap.sin + swap.sout,
            "stalled_s": stalled_us / 1e6,
        }


def _waited_s(process: psutil.Process) -> float:
    """Return how long threads have waited for a core (the kernel's scheduler/sched-stats.rst)."""
    total = 0
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{process.pid}/task/{thread}/schedstat").read_text("ascii")
                total += int(text.split()[1])
    return total / 1e9


def _cpu_s_of_others(own: set[int]) -> dict[tuple[int, str], float]:
    """Return the CPU time of every program but ours, by process and name."""
    times: dict[tuple[int, str], float] = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        cpu = process.info["cpu_times"]
        if process.pid not in own and cpu is not None:
            times[process.pid, process.info["name"]] = cpu.user + cpu.system
    return times


def _swap_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error):  # it has ended
        return process.memory_full_info().swap
    return 0
