"""A process pool that survives the death of a worker and reports the outcome of every task.

One killed process breaks a pool of the standard library, which does not say what the process did.
"""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, final

import torch

from framework.errors import PacelineError, ResourceError, words_of
from framework.system.durable import uninterrupted
from framework.system.malloc import keep_freed_memory
from framework.system.no_memory import lacks_memory
from framework.system.stopping import deaf_children, die_with_parent, set_all
from framework.system.user_code import user_error

Send = Callable[[Any], None]
OnMessage = Callable[[Any, Any], None]  # (task, message)
Work = Callable[[Any, Send], Any]  # (task, send) -> result; picklable if processes are not forked


class TaskEvent(NamedTuple):
    """The end of a task."""

    kind: str  # ``done``, or ``lost`` if its process died
    task: Any
    value: Any  # the result, or the exit code of the process


class _Worker(NamedTuple):
    process: Any
    connection: Connection
    task: Any


@final
class ProcessPool:
    """Processes that do one task each. A context: leaving it kills all of them.

    Args:
        work: Does a task.
        num_workers: The most processes; 0: tasks are done in this process.
        on_message: Called with what a task sends while it is done.
        start_method: None: fork if the system can, which hands over ``work`` without pickling it.
    """

    def __init__(
        self, work: Work, num_workers: int, on_message: OnMessage, start_method: str | None = None
    ) -> None:
        if start_method is None and "fork" in multiprocessing.get_all_start_methods():
            start_method = "fork"
        self._context: Any = multiprocessing.get_context(start_method)
        self._work, self._num_workers, self._on_message = work, num_workers, on_message
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self.tasks: deque[Any] = deque()

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            workers = [*self._idle, *self._busy]
            for worker in workers:
                worker.process.kill()  # at once: what a job has not published does not count
            for worker in workers:
                _bury(worker)
            self._idle, self._busy = [], []

    def run(self, tasks: Iterable[Any]) -> Iterator[TaskEvent]:
        """Do ``tasks``, and those that are added to ``self.tasks`` meanwhile.

        The first error of a task is raised here.
        """
        self.tasks.extend(tasks)
        while self.tasks and self._num_workers == 0:
            task = self.tasks.popleft()
            yield TaskEvent("done", task, self._work(task, partial(self._on_message, task)))
        while self.tasks or self._busy:
            while self.tasks and len(self._busy) < self._num_workers:
                self._give(self.tasks.popleft())
            ready = wait([worker.connection for worker in self._busy])
            for worker in [worker for worker in self._busy if worker.connection in ready]:
                event = self._receive(worker)
                if event is not None:
                    yield event

    def _give(self, task: Any) -> None:
        worker = self._idle.pop() if self._idle else self._start()
        self._busy.append(worker._replace(task=task))
        # A worker that died while it was idle is found by the end of its connection.
        with suppress(OSError):
            worker.connection.send(task)

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._work, os.getpid()))
        # a process that was started is known, and gets no signal before it is ready
        with uninterrupted(), deaf_children(self._context.get_start_method()):
            process.start()
            theirs.close()
            return _Worker(process, ours, None)

    def _receive(self, worker: _Worker) -> TaskEvent | None:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            self._busy.remove(worker)
            _bury(worker)
            return TaskEvent("lost", worker.task, worker.process.exitcode)
        if kind == "error":
            raise value
        if kind == "failed":
            raise RuntimeError(value)
        if kind == "message":
            self._on_message(worker.task, value)
            return None
        self._busy.remove(worker)
        self._idle.append(worker)
        return TaskEvent("done", worker.task, value)


def _bury(worker: _Worker) -> None:
    worker.connection.close()
    worker.process.join()


def _serve(connection: Connection, work: Work, parent: int) -> None:
    """Run a worker process. Its parent alone decides what Ctrl-C and SIGTERM mean."""
    set_all(signal.SIG_IGN)
    keep_freed_memory()
    # A fork would wait for OpenMP threads that it does not have; and processes are the parallelism.
    torch.set_num_threads(1)
    die_with_parent()
    if os.getppid() != parent:  # the parent died before die_with_parent took effect
        os._exit(1)
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(_attempt(work, task, connection))


def _attempt(work: Work, task: Any, connection: Connection) -> tuple[str, Any]:
    """Do a task and return its outcome. Foreign errors become text, since some do not pickle."""
    try:
        return "done", work(task, lambda value: connection.send(("message", value)))
    except PacelineError as error:
        return "error", error
    except (Exception, SystemExit) as error:  # noqa: BLE001  # sent to the parent, which ends
        if lacks_memory(error):
            what = "a packing process had no memory left"
            return "error", ResourceError(152, "workers", what, "use fewer workers")
        fault = user_error(error)
        if fault is not None:
            return "error", fault
        return "failed", f"{type(error).__name__}: {words_of(error)}\n{traceback.format_exc()}"
