"""End at the end of a program the threads and processes that it has left open.

A daemon thread that is inside a C++ library then would abort the process with exit code 134.
"""

import atexit
import multiprocessing.util
import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

import torch.utils.data

LONGEST_S = 5.0  # how long the program waits for all threads: reading a batch takes less


class Closes(Protocol):
    def close(self) -> None: ...


class HasThreads(Protocol):
    @property
    def threads(self) -> Sequence[threading.Thread]: ...

    def stop(self) -> None:
        """Tell the threads to end after what they are doing, and do not wait for them."""
        ...


_processes: WeakSet[Closes] = WeakSet()
_threads: WeakSet[HasThreads] = WeakSet()


def close_at_end(owner: Closes) -> None:
    """Close the owner of processes, unless it is ``forgotten`` before."""
    _processes.add(owner)


def stop_at_end(owner: HasThreads) -> None:
    """Stop the owner of threads, unless it is ``forgotten`` before."""
    _threads.add(owner)


def forgotten(owner: Closes | HasThreads) -> None:
    """Note that an owner has closed."""
    _processes.discard(owner)  # pyright: ignore[reportArgumentType]  # it is in one of them
    _threads.discard(owner)  # pyright: ignore[reportArgumentType]


def _end() -> None:
    owners = tuple(_threads)
    for owner in owners:
        owner.stop()
    for processes in tuple(_processes):  # for which threads may wait
        processes.close()
    end = time.monotonic() + LONGEST_S
    for owner in owners:
        for thread in owner.threads:
            thread.join(max(0.0, end - time.monotonic()))


def _begin_child() -> None:
    """Leave to the parent what a forked process has inherited."""
    _processes.clear()
    _threads.clear()


# Python waits for worker processes when it ends, and ours ignore the signal that tells them to end.
# What is registered last runs first: these modules come before.
_BEFORE = (multiprocessing.util, torch.utils.data)
atexit.register(_end)
os.register_at_fork(after_in_child=_begin_child)
