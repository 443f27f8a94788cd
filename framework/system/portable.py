"""Calls that Linux has, with what takes their place on macOS and Windows."""

import ctypes
import errno
import os
import signal
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # a link is not opened
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # nor is a pipe waited for
CLOSED_BY_EXEC = getattr(os, "O_CLOEXEC", 0)
BYTES = getattr(os, "O_BINARY", 0)  # without it Windows changes the ends of lines
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows either ends a process at once
WARNING = getattr(signal, "SIGUSR1", None)  # Slurm's, before its limit


def has_locks() -> bool:
    return fcntl is not None


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file. BlockingIOError if another process has it, OSError without locks."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)


def read_at(descriptor: int, count: int, start: int) -> bytes:
    """Read up to ``count`` bytes from ``start``. No other thread may use the descriptor."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, start)
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.read(descriptor, count)
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)


def own_usage(name: str) -> int:
    """Return a figure of getrusage(2) of this process; 0 on Windows."""
    if resource is None:
        return 0
    return getattr(resource.getrusage(resource.RUSAGE_SELF), name)


def limit_data(num_bytes: int) -> None:
    """Let this process have at most so much memory of its own; Windows sets no limit."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def allowed_cores() -> set[int]:
    """Return the cores of this process's affinity mask; all, where the system has none."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def move_thread(thread: int, cores: set[int]) -> None:
    """Run a thread on these cores only. OSError if it has ended; macOS and Windows move none."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(thread, cores)


@contextmanager
def blocked(numbers: Iterable[int]) -> Generator[None]:
    """Block signals in this thread inside the block, and so in processes that it starts there."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows has no processes that inherit them
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock(numbers: Iterable[int]) -> None:
    """Let signals through that a parent has blocked."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def c_function(name: str) -> Any | None:
    """Return a function of this process's C library; None if it has none of this name."""
    with suppress(TypeError):  # Windows has no name for the whole process
        return getattr(ctypes.CDLL(None), name, None)
    return None
