"""Supervision of packing processes: give them tasks, and recover when a process is killed."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, final

from framework.errors import DataError, ResourceError
from framework.pack.engine.jobs import (
    Increment,
    Job,
    MakeWriter,
    PackWork,
    disk_error,
    do_job,
    probe,
)
from framework.pack.engine.journal import BadItem, JobResult
from framework.pack.engine.process_pool import ProcessPool, Send
from framework.pack.engine.publish import Joining, join

RETRIES = 1  # of a job whose process is killed, before its items are tried one by one


class _Probe(NamedTuple):
    """A search for the items in ``start``..``stop`` of job ``number`` that kill their process."""

    number: int
    start: int
    stop: int


def do_task(work: PackWork, make_writer: MakeWriter, task: Any, send: Send) -> Any:
    """Do a job, a probe or the joining in this process. DiskFull if the disk is full."""
    try:
        if isinstance(task, Job):
            return do_job(work, task, send)
        if isinstance(task, _Probe):
            return probe(work, task.start, task.stop, send)
        return join(task, work.journal, make_writer, send)
    except (OSError, ResourceError) as error:
        raise disk_error(error, str(work.journal.folder)) from error


@final
class JobSupervisor:
    """A context in which a process pool does jobs, even if some of its processes are killed.

    A job whose process is killed is tried once more. If that process is killed as well, the items
    are tried one by one, and those that kill their process count as bad items.

    Args:
        work: What the processes need to do a job.
        make_writer: Makes the writer of the joined file.
        num_workers: The most processes; 0: do the jobs in this process.
        on_progress: Called with the progress since its last call.
        start_method: How processes start, as ``ProcessPool`` takes it.
    """

    def __init__(
        self,
        work: PackWork,
        make_writer: MakeWriter,
        num_workers: int,
        on_progress: Callable[[Increment], None],
        start_method: str | None,
    ) -> None:
        self._work, self._on_progress = work, on_progress
        do = partial(do_task, work, make_writer)
        self._pool = ProcessPool(do, num_workers, self._on_message, start_method)
        self._deaths = Counter[int | None]()  # killed processes of each job; None: of the joining
        self._deadly: dict[int, list[BadItem]] = {}  # items that kill, of each job that was probed
        self._unfinished: dict[int, Increment] = {}  # reported progress of each unfinished job
        self._last: dict[int, int] = {}  # the latest item of each probe, by job

    def __enter__(self) -> "JobSupervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()

    def do(self, numbers: Sequence[int]) -> Iterator[JobResult]:
        """Do the jobs with these numbers, and yield each result as soon as it is known.

        Raises:
            DataError: D154 if an item kills its process, unless bad items are left out.
            ResourceError: R153 if processes are killed, but by no item alone.
        """
        for event in self._pool.run(Job(number) for number in numbers):
            if event.kind == "lost" and isinstance(event.task, _Probe):
                self._blame(event.task, event.value)
            elif event.kind == "lost":
                self._lost(event.task, event.value)
            elif isinstance(event.task, _Probe):
                self._do_without_deadly(event.task.number)
            else:
                self._unfinished.pop(event.task.number, None)
                yield event.value

    def join(self, tasks: Iterable[Joining]) -> None:
        """Join the files of all jobs into one store per task. ResourceError R153 as in ``do``."""
        for event in self._pool.run(tasks):
            if event.kind == "lost":
                self._retry(event.task, None, event.value)

    def _on_message(self, task: Any, message: Any) -> None:
        if isinstance(task, _Probe):
            self._last[task.number] = message
            return
        if isinstance(task, Job):
            before = self._unfinished.get(task.number, Increment(0))
            self._unfinished[task.number] = before.plus(message)
        self._on_progress(message)

    def _lost(self, job: Job, code: int) -> None:
        self._on_progress(self._unfinished.pop(job.number, Increment(0)).negated())
        if self._deaths[job.number] == RETRIES and job.number not in self._deadly:
            self._deaths[job.number] += 1
            self._deadly[job.number] = []
            self._probe(_Probe(job.number, *self._work.plan.item_range(job.number)))
        else:
            self._retry(job, job.number, code)

    def _retry(self, task: Any, number: int | None, code: int) -> None:
        """Do a job or the joining (None) again. ResourceError R153 after too many deaths."""
        self._deaths[number] += 1
        if self._deaths[number] > RETRIES + 2:
            where = "joining the jobs" if number is None else f"job {number}"
            what = f"kills its processes ({_cause(code)}), and no item alone is the cause"
            fix = "look at memory and the system's log; use fewer workers"
            raise ResourceError(153, where, what, fix)
        self._pool.tasks.appendleft(task)

    def _probe(self, task: _Probe) -> None:
        self._last[task.number] = task.start
        self._pool.tasks.appendleft(task)

    def _blame(self, task: _Probe, code: int) -> None:
        """Record the probe's latest item as deadly, and continue the probe after this item."""
        item = self._last[task.number]
        name = self._work.source.name(item)
        what = f"kills the process that reads it ({_cause(code)})"
        if not self._work.skip_bad:
            fix = "correct or remove it, or leave it out with pack.on_error=skip"
            raise DataError(154, name, what, fix)
        self._deadly[task.number].append(BadItem(item, name, "D154", what))
        if item + 1 < task.stop:
            self._probe(task._replace(start=item + 1))
        else:
            self._do_without_deadly(task.number)

    def _do_without_deadly(self, number: int) -> None:
        self._pool.tasks.appendleft(Job(number, tuple(self._deadly[number])))


def _cause(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    return f"exit code {code}"
