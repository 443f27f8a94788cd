"""Facts about this machine, its processes, and the control groups (cgroups) that limit them."""

import math
import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, final

import psutil
import torch

ROOT = Path("/sys/fs/cgroup")
SYSTEM = Path("/sys")
UNLIMITED = 1 << 60  # bytes; version 1 of cgroups writes the largest number of pages for "max"
# The share of the machine's memory that is kept for others, and the least bytes.
SPARE = 0.1
LEAST_SPARE = 1 << 29
PROCESS_CLOCK = 2  # linux/posix-timers_types.h: CPUCLOCK_SCHED of a whole process


class Throttle(NamedTuple):
    """How often a CPU quota has stopped the group, since the group exists."""

    periods: int  # in which the group wanted to run
    throttled: int  # of these, how many used up the quota
    seconds: float  # that all cores together were not allowed to run


@final
class Cgroups:
    """The groups of this process and all groups around them, since each of them sets a limit.

    Groups are mounted in ``root``, and the file ``own`` names those of a process.
    Source: the kernel's documents, admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1.
    """

    def __init__(self, root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> None:
        self._root = root
        self._own = own

    def cores(self) -> float:
        """Return the CPU quota in cores, infinite without one."""
        return min(map(_quota, self._folders("cpu")), default=math.inf)

    def throttle(self) -> Throttle | None:
        """Return the counters of the group that was stopped longest; None without a quota."""
        known: list[Throttle] = []
        for folder in self._folders("cpu"):
            counts = _counts(folder / "cpu.stat")
            if _quota(folder) < math.inf and "nr_throttled" in counts:
                seconds = counts.get("throttled_usec", 0) / 1e6  # version 2; nanoseconds in 1
                seconds += counts.get("throttled_time", 0) / 1e9
                known.append(Throttle(counts.get("nr_periods", 0), counts["nr_throttled"], seconds))
        return max(known, key=lambda throttle: throttle.seconds, default=None)

    def memory_limit_bytes(self) -> int | None:
        """Return the smallest limit, or None without one."""
        return min((limit for _, limit in self._limits()), default=None)

    def available_memory_bytes(self) -> int | None:
        """Return what can be taken before the limit, cached files included; None without one."""
        available: list[int] = []
        for folder, limit in self._limits():
            used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
            if used is not None:
                counts = _counts(folder / "memory.stat")
                cached = counts.get("total_inactive_file", counts.get("inactive_file", 0))
                available.append(max(0, limit - used + cached))
        return min(available, default=None)

    def _limits(self) -> Iterator[tuple[Path, int]]:
        for folder in self._folders("memory"):
            limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
            if limit and limit < UNLIMITED:
                yield folder, limit

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of our groups and of those around them, in both versions.

        A container may read a path here that it does not have. Its own group then is the root.
        """
        paths: dict[str, str] = {}
        with suppress(OSError, ValueError):
            for line in self._own.read_text(encoding="utf-8").splitlines():
                _, names, path = line.split(":", 2)
                paths |= dict.fromkeys(names.split(","), path)
        bases = ((self._root / controller, controller), (self._root, ""))
        for base, name in (*bases, (self._root / "unified", "")):
            inside = base / paths.get(name, "/").lstrip("/")
            for folder in (inside, *inside.parents):
                if folder.is_relative_to(base) and folder.is_dir():
                    yield folder


def _quota(folder: Path) -> float:
    """Return the quota of a group in cores. Without one it is "max" in version 2, -1 in 1."""
    words = _words(folder / "cpu.max")
    if not words:
        words = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
        return int(words[0]) / int(words[1])
    return math.inf


def _number(*files: Path) -> int | None:
    """Return the number in the first file that has one."""
    for file in files:
        with suppress(ValueError, IndexError):  # "max" is no number
            return int(_words(file)[0])
    return None


def _counts(file: Path) -> dict[str, int]:
    words = _words(file)
    return {key: int(value) for key, value in zip(words[::2], words[1::2], strict=False)}


def _words(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text(encoding="ascii").split()
    return []


CGROUPS = Cgroups()


def peak_rss_bytes() -> int:
    """Return the most physical memory this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rss_bytes(pid: int) -> int | None:
    """Return the physical memory of a process, shared pages included; None if it has ended."""
    with suppress(psutil.Error):
        return psutil.Process(pid).memory_info().rss
    return None


def unshared_bytes(pid: int) -> int:
    """Return the physical memory that a process does not share; 0 if it has ended."""
    with suppress(psutil.Error):
        memory = psutil.Process(pid).memory_info()
        return memory.rss - getattr(memory, "shared", 0)
    return 0


def process_cpu_s(pid: int) -> float | None:
    """Return the exact CPU time of a process; None if it has ended.

    psutil counts hundredths of a second. Source: glibc's ``clock_getcpuclockid``.
    """
    try:
        return time.clock_gettime(~pid << 3 | PROCESS_CLOCK)
    except (OSError, OverflowError):
        return None


def busy_cpu_s() -> float:
    """Return the CPU time that all programs took on the cores this process may run on."""
    return _cpu_s((1, 2, 3, 6, 7))  # user, nice, system, interrupts, soft interrupts


def stolen_cpu_s() -> float:
    """Return the CPU time that a hypervisor gave to other machines."""
    return _cpu_s((8,))


def _cpu_s(columns: tuple[int, ...]) -> float:
    """Return the seconds in these columns of /proc/stat, on the cores this process may run on."""
    with open("/proc/stat", encoding="ascii") as file:
        lines = [line.split() for line in file if line.startswith("cpu")]
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = sum(int(line[column]) for line in lines if line[0] in mine for column in columns)
    return ticks / os.sysconf("SC_CLK_TCK")


_before: list[int] = []  # the cores that this process had before ``stay_beside``


def num_cores() -> int:
    """Return the cores this process may use: its affinity, limited by its container's share."""
    allowed = _before[0] if _before else len(os.sched_getaffinity(0))
    return max(1, math.ceil(min(allowed, CGROUPS.cores())))


def stay_beside(device: torch.device) -> None:
    """Let this rank, one of several on this host, run only on the cores of its GPU's NUMA node.

    Nothing happens if the system does not name the node, or if none of its cores is allowed.
    ``num_cores`` still counts all cores, which the ranks of this host share.
    """
    if device.type != "cuda" or int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1:
        return
    # The node is -1 if there is only one. Some versions of torch do not know the bus.
    with suppress(OSError, ValueError, AttributeError):
        gpu = torch.cuda.get_device_properties(device)
        bus = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
        node = int((SYSTEM / "bus/pci/devices" / bus / "numa_node").read_text(encoding="ascii"))
        text = (SYSTEM / f"devices/system/node/node{node}/cpulist").read_text(encoding="ascii")
        cores: set[int] = set()
        for part in text.strip().split(","):  # such as 0-3,8
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
        cores &= os.sched_getaffinity(0)
        if cores and cores != os.sched_getaffinity(0):
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
    """Return how many threads torch uses for an operator: OMP_NUM_THREADS, or this rank's cores.

    A rank ignores the variable because torchrun sets it to 1.
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
