"""Facts about this machine, its processes and disks, and its control groups (cgroups)."""

import math
import mmap
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

if TYPE_CHECKING:
    import torch

from framework.system.portable import allowed_cores, move_thread, own_usage

ROOT = Path("/sys/fs/cgroup")
SYSTEM = Path("/sys")
UNLIMITED = 1 << 60  # bytes; version 1 of cgroups writes the largest number of pages for "max"
NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "9p", "glusterfs", "beegfs", "gpfs", "virtiofs"
}  # fmt: skip
# A host or a container without these has no GPU: NVIDIA's, that of Windows for Linux, AMD's.
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
NUM_THREADS = 8  # that read a disk together
BUSY = ("user", "nice", "system", "irq", "softirq")
MOST_BYTES = 4 << 20  # more of a huge file or record says nothing new


class Throttle(NamedTuple):
    """How often a CPU quota has stopped the group, since the group exists."""

    periods: int  # in which the group wanted to run
    throttled: int  # of these, how many used up the quota
    seconds: float  # that all cores together were not allowed to run


class Cgroups(NamedTuple):
    """The groups of this process and all groups around them, since each of them sets a limit.

    Source: the kernel's documents, admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1.
    """

    root: Path = ROOT  # where groups are mounted
    own: Path = Path("/proc/self/cgroup")  # the file that names those of this process

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

    def memory_bytes(self) -> tuple[float, float]:
        """Return the smallest limit, and what can be taken before one; infinite without a limit."""
        least = available = math.inf
        for folder in self._folders("memory"):
            limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
            if limit and limit < UNLIMITED:
                least = min(least, limit)
                used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
                if used is not None:
                    counts = _counts(folder / "memory.stat")
                    cached = counts.get("total_inactive_file", counts.get("inactive_file", 0))
                    available = min(available, max(0, limit - used + cached))
        return least, available

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of our groups and of those around them, in both versions."""
        paths: dict[str, str] = {}
        with suppress(OSError, ValueError):
            for line in self.own.read_text(encoding="utf-8").splitlines():
                _, names, path = line.split(":", 2)
                paths |= dict.fromkeys(names.split(","), path)
        bases = ((self.root / controller, controller), (self.root, ""))
        for base, name in (*bases, (self.root / "unified", "")):
            # A container may read a path that it does not have. Its own group then is the root.
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
    """Return the most physical memory that this process ever held; now, if nothing remembers."""
    unit = 1 if sys.platform == "darwin" else 1024
    return int(own_usage("ru_maxrss") * unit) or rss_bytes(os.getpid())


def rss_bytes(pid: int, with_shared: bool = True) -> int:
    """Return the physical memory of a process, with or without shared pages; 0 if it has ended."""
    with suppress(psutil.Error):
        memory: Any = psutil.Process(pid).memory_info()
        return memory.rss if with_shared else memory.rss - getattr(memory, "shared", 0)
    return 0


def process_cpu_s(pid: int) -> float | None:
    """Return the CPU time of a process, which psutil rounds to 0.01 s; None if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as glibc's clock_getcpuclockid
    except (OSError, OverflowError, AttributeError):  # the last two on macOS and Windows
        return None


def cores_cpu_s() -> tuple[float, float]:
    """Return the CPU time that all programs took on our cores, and that a hypervisor took."""
    times: Any = psutil.cpu_times(percpu=True)
    cores = [times[core] for core in allowed_cores() if core < len(times)]
    # macOS and Windows have fewer of them.
    busy_s = sum(getattr(each, name, 0.0) for each in cores for name in BUSY)
    return busy_s, sum(getattr(each, "steal", 0.0) for each in cores)


_before: list[int] = []  # the cores that this process had before ``stay_on_gpu_node``


def num_cores() -> int:
    """Return the cores this process may use: its affinity, limited by its container's share."""
    allowed = _before[0] if _before else len(allowed_cores())
    return max(1, math.ceil(min(allowed, CGROUPS.cores())))


def visible_gpus() -> list[str]:
    """Return the GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if not any(map(os.path.exists, DRIVERS)):
        return []
    import torch  # noqa: PLC0415  # slow to import, and only for a machine with GPUs

    num = torch.cuda.device_count()
    typed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(num)) if typed is None else typed.split(",")
    return [name.strip() for name in names][:num]


def stay_on_gpu_node(device: "torch.device") -> None:
    """Let one of several ranks on this host run only on the cores of its GPU's NUMA node.

    Nothing happens if the system does not name the node, or if none of its cores is allowed.
    """
    if device.type != "cuda" or int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1:
        return
    import torch  # noqa: PLC0415  # others use this module without it

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
        cores &= allowed_cores()
        if cores and cores != allowed_cores():
            _before.append(num_cores())
            for thread in os.listdir("/proc/self/task"):
                with suppress(ProcessLookupError):  # it has ended
                    move_thread(int(thread), cores)


def move_threads(cores: set[int]) -> None:
    """Run all threads of this process and of its children on these cores only."""
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended
            for thread in process.threads():
                with suppress(OSError):
                    move_thread(thread.id, cores)


def cores_per_rank() -> int:
    """Return the cores of this process if the ranks of this machine share them evenly."""
    return max(1, num_cores() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def threads_per_rank() -> int:
    """Return how many threads torch uses for an operator: OMP_NUM_THREADS, or this rank's cores."""
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if wish.isdecimal() and int(wish) and "RANK" not in os.environ:  # torchrun sets it to 1
        return int(wish)
    return cores_per_rank()


def total_memory_bytes() -> int:
    """Return the memory of this machine, or of this container if that is less."""
    limit, _ = CGROUPS.memory_bytes()
    return int(min(psutil.virtual_memory().total, limit))


def available_memory_bytes() -> int:
    """Return the memory that can be taken before anything is swapped or killed."""
    _, available = CGROUPS.memory_bytes()
    return int(min(psutil.virtual_memory().available, available))


def spare_bytes() -> int:
    """Return the memory to leave to other programs when taking all that is free."""
    return max(1 << 29, int(0.1 * total_memory_bytes()))


def machine() -> dict[str, Any]:
    """Return the facts that a measured figure must be read with."""
    import torch  # noqa: PLC0415  # as above

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


def disk_kind(path: str) -> str:
    """Return memory, network, rotating, solid state, or "unknown (FILE SYSTEM)".

    The kernel is believed: a virtual disk may call itself rotating.
    """
    place = Path(path).resolve()
    mounts = [
        (len(mount.mountpoint), number, mount.fstype)
        for number, mount in enumerate(psutil.disk_partitions(all=True))
        if place.is_relative_to(mount.mountpoint)
    ]
    # A later mount hides an earlier one in the same place.
    system = max(mounts, default=(0, 0, "no such mount"))[2]
    if system in ("tmpfs", "ramfs"):
        return "memory"
    if system in NETWORK or system.startswith("fuse."):
        return "network"
    if not SYSTEM.is_dir():
        return f"unknown ({system})"
    device = os.stat(path).st_dev
    block = SYSTEM / "dev/block" / f"{os.major(device)}:{os.minor(device)}"
    for folder in (block, block.resolve().parent):  # a partition's queue is that of its disk
        file = folder / "queue" / "rotational"
        if file.is_file():
            return "rotating" if file.read_text("ascii").strip() == "1" else "solid state"
    return f"unknown ({system})"


class Piece(NamedTuple):
    """The part of a file that a record takes."""

    path: str
    start: int
    length: int  # bytes


class DiskRate(NamedTuple):
    """Bytes per second of reading pieces of files at random."""

    cold: float  # in one thread
    cold_many: float  # in `NUM_THREADS` threads together


def disk_rate(pieces: Sequence[Piece], seconds: float) -> DiskRate | None:
    """Measure reading ``pieces``. None for too few, or if the cache cannot be passed by."""
    half = len(pieces) // 2
    try:
        cold = _rate(pieces[:half], seconds / 2)
        with ThreadPoolExecutor(NUM_THREADS, "paceline-disk") as pool:
            parts = [pieces[half + n :: NUM_THREADS] for n in range(NUM_THREADS)]
            jobs = [pool.submit(_rate, part, seconds / 2) for part in parts if part]
            cold_many = sum(job.result() for job in jobs)
    except (OSError, AttributeError):  # no direct access here, or a file is gone
        return None
    return DiskRate(cold, cold_many) if cold and cold_many else None


def _rate(pieces: Sequence[Piece], seconds: float) -> float:
    """Return bytes per second of one thread. The first piece is read, however long it takes."""
    num_bytes = 0
    start = time.perf_counter()
    for piece in pieces:
        num_bytes += read_uncached(piece)
        if time.perf_counter() - start > seconds:
            break
    return num_bytes / (time.perf_counter() - start)


def read_uncached(piece: Piece) -> int:
    """Read a piece from the disk, even if it is cached, and return its bytes."""
    # O_DIRECT needs whole pages, in the file and in memory: open(2).
    first = piece.start // mmap.PAGESIZE * mmap.PAGESIZE
    length = min(piece.start + piece.length - first, MOST_BYTES)
    descriptor = os.open(piece.path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, -(-length // mmap.PAGESIZE) * mmap.PAGESIZE) as buffer:
            return min(piece.length, os.preadv(descriptor, [buffer], first))
    finally:
        os.close(descriptor)
