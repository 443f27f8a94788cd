"""Forked processes, which find what this one has loaded."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from typing import Any


def forked(work: Callable[..., Any], *arguments: Any) -> ForkProcess:
    """Start a process that calls ``work``, from a thread without a team of OpenMP to wait for."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    starter = threading.Thread(target=process.start)
    starter.start()
    starter.join()
    return process


@contextmanager
def other_program(work: Callable[..., Any], *arguments: Any) -> Generator[int]:
    """Call ``work`` in a process that is not our child, as its parent has ended, and kill it."""
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def start() -> None:
        if pid := os.fork():
            queue.put(pid)
        else:
            work(*arguments)
        os._exit(0)

    forked(start).join()
    pid = queue.get()
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
