"""How much memory may be taken without driving this machine into swapping, and a process that cannot take more."""

import os
import resource
from contextlib import suppress
from pathlib import Path

GIB = 1 << 30
SPARE = 0.1  # of the machine's memory is left to others,
LEAST_SPARE = GIB // 2  # and no less than this
CGROUP = Path("/sys/fs/cgroup")


def total_bytes() -> int:
    """Memory of this machine, or of this container where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, _cgroup("memory.max") or physical)


def spare_bytes() -> int:
    """What is to be left alone."""
    return max(LEAST_SPARE, int(SPARE * total_bytes()))


def available_bytes() -> int:
    """What can be taken before anything is swapped or killed. Half the memory where the system does not say (not Linux)."""
    known = _lines(Path("/proc/meminfo"))
    available = known["MemAvailable"] if "MemAvailable" in known else total_bytes() // 2
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is None or used is None:
        return available
    return min(available, max(0, limit - used + _file_cache()))


def _lines(path: Path) -> dict[str, int]:
    """``Name:  12 kB`` -> bytes by name."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if rest.endswith("kB"):
                found[name] = 1024 * int(rest.split()[0])
    return found


def _cgroup(name: str) -> int | None:
    """A number of this container's (cgroup v2); None where there is no limit, or no such file."""
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _file_cache() -> int:
    """Of the container's memory, what holds only files and is given back when asked for."""
    with suppress(OSError):
        for line in (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0


def limit_this_process(num_bytes: int) -> None:
    """Let this process take so much more, and no more: what asks for it gets an error before any page is touched (RLIMIT_DATA).

    Where the kernel must end a process for memory after all, it is this one.
    """
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    taken = _lines(Path("/proc/self/status")).get("VmData", 0)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = taken + num_bytes
    resource.setrlimit(
        resource.RLIMIT_DATA,
        (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
    )


def forget_peak() -> None:
    """Have ``peak_bytes`` begin anew."""
    with suppress(OSError):  # Linux's: proc(5), clear_refs
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """The most physical memory this process held since ``forget_peak``; 0 where the system does not say."""
    return _lines(Path("/proc/self/status")).get("VmHWM", 0)
