"""Recognize that the system or a device refuses memory, whatever a library makes of it."""

import errno
import os

from framework.errors import ResourceError, words_of

ALL = 1 << 20  # characters
WORDS = (
    os.strerror(errno.ENOMEM),
    "allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "bad alloc",
    "ALLOC_FAILED",
    "failed to map segment",
)


def lacks_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that no memory is left. Its causes do not count."""
    # torch's OutOfMemoryError is slow to import
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    text = words_of(error, ALL)
    return isinstance(error, RuntimeError | OSError | ImportError) and any(
        word in text for word in WORDS
    )


def memory_error(error: BaseException) -> ResourceError:
    """Return the error for a refusal of memory."""
    fix = "lower batch_size or the number of workers, or choose a smaller model"
    return ResourceError(104, "memory", words_of(error)[:200] or "used up", fix)
