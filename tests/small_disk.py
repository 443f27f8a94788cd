"""A full disk for tests, without one."""

import resource
from contextlib import contextmanager


@contextmanager
def small_disk(size_bytes):
    """Keep the files of this process from growing beyond ``size_bytes``, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
