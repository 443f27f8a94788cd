"""Let malloc keep freed memory."""

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_THRESHOLD = -3
TRIM_BYTES = 1 << 30
MMAP_BYTES = 32 << 20  # the most that glibc accepts
SETTINGS = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory in this process. Return whether it accepted.

    By default every new batch and activation takes one page fault per 4 kB: a fifth of a small
    network's training step on the CPU. Settings of malloc in the environment take precedence.
    """
    if any(os.environ.get(name) for name in SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    settings = ((M_MMAP_THRESHOLD, MMAP_BYTES), (M_TRIM_THRESHOLD, TRIM_BYTES))
    return all(mallopt(option, size_bytes) for option, size_bytes in settings)
