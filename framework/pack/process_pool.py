"""Processes that pack or verify: a pool of the standard library whose tasks show their progress."""

import mmap
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import Any, final

import numpy as np
import torch

from framework.errors import PacelineError, ResourceError, words_of
from framework.system.durable import uninterrupted
from framework.system.memory import keep_freed_memory, lacks_memory
from framework.system.stopping import deaf_children, die_with_parent, set_all
from framework.system.user_code import user_error

LOOK_S = 0.1  # between two looks at the progress of other processes
# The progress of a task: items, records and bytes that are done, and the item that is read now plus
# 1 (0: none). int64 [4].
Row = np.ndarray
Tell = Callable[[], object]
Work = Callable[[Any, Row, Tell], Any]  # (task, row, tell) -> result

_served: list[tuple[Work, np.ndarray]] = []  # what a worker process does


@final
class ProcessPool:
    """Forked processes that do one task each. A context: leaving it kills all of them.

    ``rows`` is the progress of each task, in memory that the processes share: int64 [num_rows, 4].
    ``num_workers=0`` does tasks in this process. ``tell`` is called when rows may have changed.
    """

    def __init__(
        self, do: Work, num_workers: int, num_rows: int, tell: Callable[["ProcessPool"], object]
    ) -> None:
        self._do, self._tell = do, lambda: tell(self)
        self._most = 2 * num_workers  # tasks that are handed over
        memory = mmap.mmap(-1, 32 * max(1, num_rows))
        self.rows = np.frombuffer(memory, np.int64).reshape(-1, 4)
        self._pool: ProcessPoolExecutor | None = None
        if num_workers:
            context, arguments = multiprocessing.get_context("fork"), (do, self.rows, os.getpid())
            self._pool = ProcessPoolExecutor(num_workers, context, _serve, arguments)

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            with uninterrupted():
                processes: Any = self._pool._processes or {}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # Python 3.14 can kill them
                for process in list(processes.values()):
                    process.kill()  # at once: what a job has not published does not count
                self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Do the tasks, whose rows are in their order. Yield each with its result once it is done.

        BrokenProcessPool if a process was killed; ResourceError R152 if one has no memory left.
        """
        self.rows[:] = 0
        following = enumerate(tasks)
        if self._pool is None:
            for row, task in following:
                yield task, self._do(task, self.rows[row], self._tell)
            return
        waiting: dict[Future[Any], Any] = {}
        while True:
            for row, task in islice(following, self._most - len(waiting)):
                # A process gets no signal before it is ready.
                with uninterrupted(), deaf_children():
                    waiting[self._pool.submit(_attempt, task, row)] = task
            if not waiting:
                return
            done, _ = wait(waiting, LOOK_S, FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
            self._tell()


def _serve(do: Work, rows: np.ndarray, parent: int) -> None:
    """Prepare a worker process. Its parent alone decides what Ctrl-C and SIGTERM mean."""
    set_all(signal.SIG_IGN)
    keep_freed_memory()
    # A fork would wait for OpenMP threads that it does not have; and processes are the parallelism.
    torch.set_num_threads(1)
    die_with_parent()
    if os.getppid() != parent:  # the parent died before die_with_parent took effect
        os._exit(1)
    _served.append((do, rows))


def _attempt(task: Any, row: int) -> Any:
    """Do a task. Foreign errors become text, since some cannot be pickled."""
    do, rows = _served[-1]
    try:
        return do(task, rows[row], lambda: None)
    except PacelineError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # sent to the parent, which ends
        if lacks_memory(error):
            what = "a packing process had no memory left"
            raise ResourceError(152, "workers", what, "use fewer workers") from None
        fault = user_error(error)
        if fault is None:
            text = f"{type(error).__name__}: {words_of(error)}\n{traceback.format_exc()}"
            fault = RuntimeError(text)
        raise fault from None
