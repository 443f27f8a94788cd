"""The page cache: how much of a file is in memory, and files as cold as after a reboot."""

import ctypes
import mmap
import os
from collections.abc import Sequence

import numpy as np

from framework.errors import ResourceError

PROT_READ, MAP_SHARED = 1, 1  # sys/mman.h
STAYS = 0.05  # of the bytes may stay in memory where a file is called cold


def drop_cached(paths: Sequence[str]) -> None:
    """Forget what the page cache has of these files. ResourceError R107 where the system keeps it: memory is their disk, another program
    maps them, or there is no such call.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # only what is on the disk is forgotten
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    share = cached_share(paths)
    if share is None or share > STAYS:
        kept = "cannot be told" if share is None else f"is {share:.0%}"
        what = f"what stays of it in memory {kept}, in spite of POSIX_FADV_DONTNEED"
        raise ResourceError(
            107,
            f"data.stage = cold: {paths[0]}",
            what,
            "use a local disk, end programs that read it, or set data.stage=none",
        )


def cached_share(paths: Sequence[str]) -> float | None:
    """The share of these files' bytes that is in the page cache (0 to 1). None where the system does not tell: not Linux, or no right to."""
    pages = [_resident(path) for path in paths if os.path.getsize(path)]
    known = [found for found in pages if found is not None]
    total = sum(number for _, number in known)
    return sum(resident for resident, _ in known) / total if total else None


def _resident(path: str) -> tuple[int, int] | None:
    """(pages in memory, pages) of a file, by mincore(2) over a map that nobody reads."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mincore"):
        return None
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    size = os.path.getsize(path)
    count = -(-size // mmap.PAGESIZE)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, PROT_READ, MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    pages = ctypes.create_string_buffer(count)
    failed = libc.mincore(address, size, pages)
    libc.munmap(address, size)
    return None if failed else (int((np.frombuffer(pages.raw, np.uint8) & 1).sum()), count)
