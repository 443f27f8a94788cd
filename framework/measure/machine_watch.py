"""What the machine did while something was measured: other programs, quota, swap and memory."""

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import psutil

from framework.measure.host import Cgroups, Throttle, busy_cpu_s, process_cpu_s, stolen_cpu_s

PRESSURE = Path("/proc/pressure/memory")
NUM_PROGRAMS = 3  # other programs that are named
# Of a core: what keeps less is not named.
LEAST_CORES = 0.05


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
    swapped_in_bytes: int = 0  # from swap, by all programs
    swapped_out_bytes: int = 0
    own_swap_bytes: int = 0  # of this process and its children, at the end
    stalled_share: float = 0.0  # of the time: some program waited for memory


class _Counters(NamedTuple):
    """Counters that only grow, at one moment."""

    at: float
    own_s: float
    waited_s: float  # that our threads could run but had no core
    busy_s: float | None
    stolen_s: float | None
    programs: dict[tuple[int, str], float]  # CPU seconds of every other program
    throttle: Throttle | None
    swapped_in: int
    swapped_out: int
    stalled_s: float


@final
class MachineWatch:
    """Reads the machine's counters, now and at each lap. A lap takes a few milliseconds."""

    def __init__(self, cgroups: Cgroups | None = None, pressure: Path = PRESSURE) -> None:
        self._cgroups = cgroups or Cgroups()
        self._pressure = pressure
        self._before = self._counters()

    def lap(self) -> MachineUse:
        """Return how the machine was used since the last lap."""
        before = self._before
        now = self._before = self._counters()
        wall_s = max(now.at - before.at, 1e-9)
        own_s = max(0.0, now.own_s - before.own_s)
        busy_s = _grown(before.busy_s, now.busy_s)
        programs = [
            Program(*key, (cpu_s - before.programs.get(key, cpu_s)) / wall_s)
            for key, cpu_s in now.programs.items()
        ]
        programs = [program for program in programs if program.cores >= LEAST_CORES]
        programs.sort(key=lambda program: -program.cores)
        return MachineUse(
            wall_s=wall_s,
            own_cores=own_s / wall_s,
            waited_cores=max(0.0, now.waited_s - before.waited_s) / wall_s,
            others_cores=max(0.0, busy_s - own_s) / wall_s,
            stolen_cores=_grown(before.stolen_s, now.stolen_s) / wall_s,
            programs=tuple(programs[:NUM_PROGRAMS]),
            throttled_share=_throttled_share(before.throttle, now.throttle),
            swapped_in_bytes=now.swapped_in - before.swapped_in,
            swapped_out_bytes=now.swapped_out - before.swapped_out,
            own_swap_bytes=sum(map(_swap_bytes, _own())),
            stalled_share=min(1.0, (now.stalled_s - before.stalled_s) / wall_s),
        )

    def _counters(self) -> _Counters:
        own = _own()
        swap = psutil.swap_memory()
        return _Counters(
            at=time.perf_counter(),
            own_s=_cpu_s(own),
            waited_s=sum(map(_waited_s, own)),
            busy_s=busy_cpu_s(),
            stolen_s=stolen_cpu_s(),
            programs=_programs({process.pid for process in own}),
            throttle=self._cgroups.throttle(),
            swapped_in=swap.sin,
            swapped_out=swap.sout,
            stalled_s=_stalled_s(self._pressure),
        )


def _own() -> list[psutil.Process]:
    """Return this process and all processes below it."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _cpu_s(own: list[psutil.Process]) -> float:
    """Return the CPU time of this process and its children, with those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = (process_cpu_s(process.pid) or 0.0 for process in own if process.pid != os.getpid())
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(running)


def _waited_s(process: psutil.Process) -> float:
    """Return how long the threads of a process have waited for a core.

    This includes the time in which a quota stopped them. Source: the kernel's
    scheduler/sched-stats.rst.
    """
    total = 0
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{process.pid}/task/{thread}/schedstat").read_text("ascii")
                total += int(text.split()[1])
    return total / 1e9


def _programs(own: set[int]) -> dict[tuple[int, str], float]:
    """Return the CPU time of every program but ours, by process and name."""
    times: dict[tuple[int, str], float] = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        cpu = process.info["cpu_times"]
        if process.pid not in own and cpu is not None:
            times[process.pid, process.info["name"]] = cpu.user + cpu.system
    return times


def _swap_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error, AttributeError):  # it has ended, or this is not Linux
        return process.memory_full_info().swap
    return 0


def _throttled_share(before: Throttle | None, now: Throttle | None) -> float:
    if before is None or now is None or now.periods <= before.periods:
        return 0.0
    return (now.throttled - before.throttled) / (now.periods - before.periods)


def _stalled_s(file: Path) -> float:
    """Return how long some program has waited for memory; 0 if the kernel does not count.

    Source: the kernel's accounting/psi.rst.
    """
    with suppress(OSError, IndexError, ValueError):
        some = file.read_text(encoding="ascii").splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    return 0.0


def _grown(before: float | None, now: float | None) -> float:
    """Return how much a counter has grown; 0 if it is unknown."""
    if before is None or now is None:
        return 0.0
    return max(0.0, now - before)
