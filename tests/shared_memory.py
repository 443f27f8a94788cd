"""Shared memory that tests leave behind, in one test process or in several side by side."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def torch_segments() -> set[str]:
    """Return the names of torch's shared memory that this process or a dead process made."""
    return {name for name in os.listdir("/dev/shm") if _has_no_other_owner(name)}


def _has_no_other_owner(name: str) -> bool:
    if not name.startswith("torch_"):
        return False
    pid = name.split("_")[1]
    return pid == str(os.getpid()) or not Path("/proc", pid).exists()


@contextmanager
def this_test_runs(folder: Path) -> Iterator[None]:
    """Hold this process's lock in ``folder``, which all test processes share, during a test."""
    path = folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}.running"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # a child of the test that still runs has inherited the file: closing would not unlock
            fcntl.flock(file, fcntl.LOCK_UN)


def other_test_processes_wait(folder: Path) -> None:
    """Wait until every test that another process runs now has ended."""
    for path in folder.glob("*.running"):
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
