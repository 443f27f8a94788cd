"""Let malloc keep freed memory."""

import ctypes
import os
from functools import cache
from typing import Any

M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4
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
def keep_freed_memory(of_any_size: bool = False) -> bool:
    """Let glibc keep up to 1 GiB of freed memory in this process. Return whether it accepted.

    By default every new batch and activation takes one page fault per 4 kB: a fifth of a small
    network's training step on the CPU. Settings of malloc in the environment take precedence.

    ``of_any_size`` is for training on the CPU. Otherwise blocks of more than 32 MB are mappings of
    their own, which glibc gives back at once: half of a step whose activations take 50 MB each. In
    return, all that is free between blocks in use stays, and growing blocks are copied.
    """
    if any(os.environ.get(name) for name in SETTINGS):
        return False
    mallopt = _function("mallopt")
    if mallopt is None:
        return False
    kept = mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
    if of_any_size:
        kept = kept and mallopt(M_MMAP_MAX, 0)
    return bool(kept)


def give_back_freed_memory() -> None:
    """Let glibc give back what is free, in whole pages."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Any:
    """Return a function of the C library, or None if another library lacks it."""
    return getattr(ctypes.CDLL(None), name, None)
