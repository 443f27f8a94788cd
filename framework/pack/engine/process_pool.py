"""Worker processes that may die: each does one task at a time, and what became of every task is told.

A pool of the standard library is broken by one killed process, and does not say what that process was doing.
"""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, final

import torch

from framework.errors import PacelineError, ResourceError, words_of
from framework.system.durable import uninterrupted
from framework.system.malloc import keep_freed_memory
from framework.system.stopping import deaf_children, die_with_parent, set_all
from framework.system.user_code import user_error

Say = Callable[[Any], None]
Heard = Callable[[Any, Any], None]  # (task, what it said)
Work = Callable[[Any, Say], Any]  # (task, say) -> result; picklable where processes are not forked


class Event(NamedTuple):
    """What became of a task: ``done`` (``value``: its result), or ``lost`` (its process died; ``value``: the exit code)."""

    kind: str
    task: Any
    value: Any


class _Worker(NamedTuple):
    process: Any
    connection: Connection
    task: Any


@final
class Crew:
    """Up to ``num_workers`` processes that do ``work``; 0: this process does. A context; on leaving it nothing runs any more.

    ``heard`` is given what a task says while it is done. ``start_method``: None: fork where there is one, which hands over ``work`` without pickling it.
    """

    def __init__(
        self, work: Work, num_workers: int, heard: Heard, start_method: str | None = None
    ) -> None:
        if start_method is None and "fork" in multiprocessing.get_all_start_methods():
            start_method = "fork"
        self._context: Any = multiprocessing.get_context(start_method)
        self._work, self._num_workers, self._heard = work, num_workers, heard
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self.tasks: deque[Any] = deque()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            workers = [*self._idle, *self._busy]
            for worker in workers:
                worker.process.kill()  # at once: what a job has not published does not count
            for worker in workers:
                self._bury(worker)
            self._idle, self._busy = [], []

    def run(self, tasks: Iterable[Any]) -> Iterator[Event]:
        """Do ``tasks``, and those added to ``self.tasks`` meanwhile. A task's error is raised here, the first one that is told."""
        self.tasks.extend(tasks)
        if self._num_workers == 0:
            yield from self._run_here()
            return
        while self.tasks or self._busy:
            while self.tasks and len(self._busy) < self._num_workers:
                self._give(self.tasks.popleft())
            ready = wait([worker.connection for worker in self._busy])
            for worker in [worker for worker in self._busy if worker.connection in ready]:
                event = self._hear(worker)
                if event is not None:
                    yield event

    def _run_here(self) -> Iterator[Event]:
        while self.tasks:
            task = self.tasks.popleft()
            yield Event("done", task, self._work(task, partial(self._heard, task)))

    def _give(self, task: Any) -> None:
        worker = self._idle.pop() if self._idle else self._start()
        self._busy.append(worker._replace(task=task))
        try:
            worker.connection.send(task)
        except OSError:  # it died while it had nothing to do: its connection's end says so
            return

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._work, os.getpid()))
        with (
            uninterrupted(),
            deaf_children(self._context.get_start_method()),
        ):  # a process that was started is known, and hears nothing before it is ready
            process.start()
            theirs.close()
            return _Worker(process, ours, None)

    def _hear(self, worker: _Worker) -> Event | None:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            self._busy.remove(worker)
            self._bury(worker)
            return Event("lost", worker.task, worker.process.exitcode)
        if kind == "error":
            raise value
        if kind == "failed":
            raise RuntimeError(value)
        if kind == "said":
            self._heard(worker.task, value)
            return None
        self._busy.remove(worker)
        self._idle.append(worker)
        return Event("done", worker.task, value)

    def _bury(self, worker: _Worker) -> None:
        worker.connection.close()
        worker.process.join()


def _serve(connection: Connection, work: Work, parent: int) -> None:
    """A worker process: its parent alone decides what Ctrl-C or SIGTERM mean."""
    set_all(signal.SIG_IGN)
    keep_freed_memory()
    torch.set_num_threads(
        1
    )  # a fork has none of OpenMP's threads, for which it would wait; and we are the parallelism
    die_with_parent()
    if os.getppid() != parent:  # it died before we could ask to be told
        os._exit(1)
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(_attempt(work, task, connection))


def _attempt(work: Work, task: Any, connection: Connection) -> tuple[str, Any]:
    """What is told of a task at its end. An error that is not ours goes as text: not every exception can be pickled."""
    try:
        return "done", work(task, lambda value: connection.send(("said", value)))
    except PacelineError as error:
        return "error", error
    except MemoryError:
        return "error", ResourceError(
            152, "workers", "a packing process had no memory left", "use fewer workers"
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001  # told to the parent, which ends
        fault = user_error(error)
        if fault is not None:
            return "error", fault
        return "failed", f"{type(error).__name__}: {words_of(error)}\n{traceback.format_exc()}"
