"""Measures how much of a file is in the page cache, and makes files as cold as after boot."""

import ctypes
import mmap
import os
from collections.abc import Sequence

import numpy as np

from framework.errors import ResourceError

STAYS = 0.05  # the share of bytes that may stay in memory if a file is called cold


def drop_cached(paths: Sequence[str]) -> None:
    """Remove files from the page cache.

    Raises:
        ResourceError: R107 if the system keeps them: their disk is memory, another program maps
            them, or this is not Linux.
    """
    for path in paths:
        _drop(path)
    share = cached_share(paths)
    if share is None or share > STAYS:
        kept = "an unknown share" if share is None else f"{share:.0%}"
        what = f"{kept} of it stays in memory in spite of POSIX_FADV_DONTNEED"
        fix = "use a local disk, end programs that read it, or set data.stage=none"
        raise ResourceError(107, f"data.stage = cold: {paths[0]}", what, fix)


def cached_share(paths: Sequence[str]) -> float | None:
    """Return the share of the files' bytes in the page cache (0 to 1).

    None if the files are empty or the system does not tell: not Linux, or no right to know.
    """
    pages = [_pages(path) for path in paths if os.path.getsize(path)]
    known = [counts for counts in pages if counts is not None]
    total = sum(number for _, number in known)
    return sum(cached for cached, _ in known) / total if total else None


def _drop(path: str) -> None:
    """Ask the system to drop a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the system drops only what is on the disk
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _pages(path: str) -> tuple[int, int] | None:
    """Return how many pages of a file are in memory, and how many it has. Source: mincore(2)."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mincore"):
        return None
    file = np.memmap(path, np.uint8, "r")  # mapped, but not read
    states = np.zeros(-(-file.size // mmap.PAGESIZE), np.uint8)
    address, size = ctypes.c_void_p(file.ctypes.data), ctypes.c_size_t(file.size)
    if libc.mincore(address, size, ctypes.c_void_p(states.ctypes.data)):
        return None
    return int((states & 1).sum()), len(states)
