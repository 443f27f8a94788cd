"""Let malloc keep freed memory."""

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_MAX = -4
TRIM_BYTES = 1 << 30
SETTINGS = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep freed memory in this process. Return whether it accepted.

    By default every new batch and activation takes one page fault per 4 kB: a fifth of a small
    network's training step on the CPU, and half of one whose activations take 50 MB each. No block
    gets a mapping of its own, which glibc would give back at once. So everything that is free
    between blocks in use stays, and up to 1 GiB behind them. Settings of malloc in the environment
    take precedence.
    """
    if any(os.environ.get(name) for name in SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))
