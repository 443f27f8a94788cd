"""Limits and counters of the control groups (cgroups) of this process, in versions 1 and 2.

Source: the kernel's documents, admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
# Version 1 writes the largest number of pages instead of "max".
UNLIMITED = 1 << 60


class Throttle(NamedTuple):
    """How often a CPU quota has stopped the group, since the group exists."""

    periods: int  # in which the group wanted to run
    throttled: int  # of these, how many used up the quota
    seconds: float  # that all cores together were not allowed to run


@final
class Cgroups:
    """The groups of this process and all groups around them, since each of them sets a limit.

    Args:
        root: Where the groups are mounted.
        own: The file that names the groups of a process.
    """

    def __init__(self, root: Path = ROOT, own: Path = OWN) -> None:
        self._root = root
        self._own = own

    def cores(self) -> float:
        """Return the CPU quota in cores, infinite without one."""
        return min(map(_cores, self._folders("cpu")), default=math.inf)

    def throttle(self) -> Throttle | None:
        """Return the counters of the group that was stopped longest; None without a quota."""
        known = [
            throttle
            for folder in self._folders("cpu")
            if _cores(folder) < math.inf and (throttle := _throttle(folder)) is not None
        ]
        return max(known, key=lambda throttle: throttle.seconds, default=None)

    def memory_limit_bytes(self) -> int | None:
        """Return the smallest limit, or None without one."""
        limits = [limit for folder in self._folders("memory") if (limit := _limit(folder))]
        return min(limits, default=None)

    def available_memory_bytes(self) -> int | None:
        """Return what can be taken before the limit, or None without a limit.

        The group's cached files count as free, because the kernel gives them back.
        """
        available = [
            max(0, limit - used + _file_cache(folder))
            for folder in self._folders("memory")
            if (limit := _limit(folder)) and (used := _used(folder)) is not None
        ]
        return min(available, default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of our groups and of those around them, in both versions.

        A container that sees only its own part of the tree reads a path here that it does not
        have. Its own group then is the root.
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


def _cores(folder: Path) -> float:
    quota, period = [*_words(folder / "cpu.max"), "", ""][:2]
    if not quota:
        quota = " ".join(_words(folder / "cpu.cfs_quota_us"))
        period = " ".join(_words(folder / "cpu.cfs_period_us"))
    # Without a quota it is "max" in version 2, and -1 in version 1.
    if not (quota.isdigit() and period.isdigit()):
        return math.inf
    return int(quota) / int(period)


def _throttle(folder: Path) -> Throttle | None:
    counts = _table(folder / "cpu.stat")
    if "nr_throttled" not in counts:
        return None
    seconds = counts.get("throttled_usec", 0) / 1e6 + counts.get("throttled_time", 0) / 1e9
    return Throttle(counts.get("nr_periods", 0), counts["nr_throttled"], seconds)


def _limit(folder: Path) -> int | None:
    limit = _first(folder / "memory.max", folder / "memory.limit_in_bytes")
    return None if limit is None or limit >= UNLIMITED else limit


def _used(folder: Path) -> int | None:
    return _first(folder / "memory.current", folder / "memory.usage_in_bytes")


def _file_cache(folder: Path) -> int:
    counts = _table(folder / "memory.stat")
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))


def _first(*files: Path) -> int | None:
    """Return the number in the first file that has one."""
    for file in files:
        with suppress(ValueError, IndexError):  # "max" is no number
            return int(_words(file)[0])
    return None


def _table(file: Path) -> dict[str, int]:
    words = _words(file)
    return {key: int(value) for key, value in zip(words[::2], words[1::2], strict=False)}


def _words(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text(encoding="ascii").split()
    return []
