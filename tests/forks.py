"""Forked processes, which find what this one has loaded."""

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from typing import Any


def forked(work: Callable[..., Any], *arguments: Any) -> ForkProcess:
    """Start a forked process that calls ``work``.

    A new thread forks it. If the current thread has used OpenMP, its team of threads does not exist
    in the child, and the child would wait for it.
    """
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    starter = threading.Thread(target=process.start)
    starter.start()
    starter.join()
    return process
