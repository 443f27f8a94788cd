"""Forked processes, which find what this one has loaded."""

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from typing import Any


def forked(work: Callable[..., Any], *arguments: Any) -> ForkProcess:
    """A process that does ``work``, begun. From a thread of its own: OpenMP's team, if the present one has used any, is gone in the child,
    which would wait for it.
    """
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    starter = threading.Thread(target=process.start)
    starter.start()
    starter.join()
    return process
