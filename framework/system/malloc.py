"""What malloc does with memory that is freed."""

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
TRIM_BYTES, MMAP_BYTES = 1 << 30, 32 << 20  # the latter is the largest that glibc takes
SETTINGS = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


@cache
def keep_freed_memory() -> bool:
    """Tells glibc to keep freed memory (up to a GiB of it) for the next allocation, for the life of this process. Whether it was told so.

    By default it soon hands it back to the system, and every batch and activation takes a page fault per 4 kB to be had again: a fifth
    of a small network's training step on the CPU. Who has set malloc by the environment is left alone.
    """
    if any(os.environ.get(name) for name in SETTINGS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's alone
    return mallopt is not None and bool(
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
    )
