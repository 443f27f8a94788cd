"""Let malloc keep freed memory, and recognize that the system or a device refuses more."""

import ctypes
import errno
import os
from functools import cache

from framework.errors import ResourceError, words_of

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
REFUSALS = (
    os.strerror(errno.ENOMEM),
    "allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "bad alloc",
    "ALLOC_FAILED",
    "failed to map segment",
)


@cache
def keep_freed_memory(of_any_size: bool = False) -> bool:
    """Let glibc keep up to 1 GiB of freed memory in this process. Return whether it accepted.

    Otherwise every new batch and activation takes one page fault per 4 kB: a fifth of a small
    network's step on the CPU. Settings of malloc in the environment take precedence.

    ``of_any_size`` is for training on the CPU: blocks above 32 MB are kept, too (half of a step
    whose activations take 50 MB each), but what is free between used blocks stays with us.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not of every C library
    if mallopt is None or any(os.environ.get(name) for name in SETTINGS):
        return False
    kept = mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
    if of_any_size:
        kept = kept and mallopt(M_MMAP_MAX, 0)
    return bool(kept)


def give_back_freed_memory() -> None:
    """Let glibc give back what is free, in whole pages."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def lacks_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that no memory is left. Its causes do not count."""
    # torch's OutOfMemoryError is slow to import
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError | OSError | ImportError):
        return False
    text = words_of(error, 1 << 20)
    return getattr(error, "errno", None) == errno.ENOMEM or any(word in text for word in REFUSALS)


def memory_error(error: BaseException) -> ResourceError:
    """Return the error for a refusal of memory."""
    fix = "lower batch_size or the number of workers, or choose a smaller model"
    what = words_of(error, 200) if str(error) else "used up"
    return ResourceError(104, "memory", what, fix)
