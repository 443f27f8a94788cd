"""Supervision of packing processes: what they do, and what happens when one is killed."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, final

from framework.contracts.records import Manifest
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
from framework.pack.engine.publish import join

RETRIES = 1  # of a killed job, before its items are tried one by one


class _Probe(NamedTuple):
    """Find the deadly items among ``start``..``stop`` of job ``number``."""

    number: int
    start: int
    stop: int


class _Join(NamedTuple):
    """Join all jobs' files into one."""

    manifest: Manifest
    results: Sequence[JobResult]


def do_task(work: PackWork, make_writer: MakeWriter, task: Any, send: Send) -> Any:
    """Do a job, a probe or the joining, in any process. DiskFull if space is missing."""
    try:
        if isinstance(task, Job):
            return do_job(work, task, send)
        if isinstance(task, _Probe):
            return probe(work, task.start, task.stop, send)
        return join(task.manifest, task.results, work.journal, make_writer, send)
    except (OSError, ResourceError) as error:
        raise disk_error(error, str(work.journal.folder)) from error


@final
class JobSupervisor:
    """Jobs done by a process pool. A context, as the pool is.

    A job whose process is killed is done again, once. Then its items are tried one by one, and
    those that kill count as bad input. ``make_writer`` is for the joined file.
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
        self._deaths = Counter[Any]()
        self._deadly: dict[int, list[BadItem]] = {}
        self._under_way: dict[int, Increment] = {}
        self._last: dict[int, int] = {}  # the latest item of each probe

    def __enter__(self) -> "JobSupervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()

    def do(self, numbers: Sequence[int]) -> Iterator[JobResult]:
        """Do the jobs of these numbers.

        Raises:
            DataError: D154 for an item that kills, unless bad items are left out.
            ResourceError: R153 if processes are killed without such an item.
        """
        for event in self._pool.run(Job(number) for number in numbers):
            if event.kind == "lost" and isinstance(event.task, _Probe):
                self._blame(event.task, event.value)
            elif event.kind == "lost":
                self._lost(event.task, event.value)
            elif isinstance(event.task, _Probe):
                self._do_without_deadly(event.task.number)
            else:
                self._under_way.pop(event.task.number, None)
                yield event.value

    def join(self, manifest: Manifest, results: Sequence[JobResult]) -> None:
        """Join the jobs' files into one."""
        for event in self._pool.run([_Join(manifest, results)]):
            if event.kind == "lost":
                self._retry(event.task, "join", event.value)

    def _on_message(self, task: Any, message: Any) -> None:
        if isinstance(task, _Probe):
            self._last[task.number] = message
            return
        if isinstance(task, Job):
            before = self._under_way.get(task.number, Increment(0))
            self._under_way[task.number] = before.plus(message)
        self._on_progress(message)

    def _lost(self, job: Job, code: int) -> None:
        self._on_progress(self._under_way.pop(job.number, Increment(0)).negated())
        if self._deaths[job.number] == RETRIES and job.number not in self._deadly:
            self._deaths[job.number] += 1
            self._deadly[job.number] = []
            self._probe(_Probe(job.number, *self._work.plan.item_range(job.number)))
        else:
            self._retry(job, job.number, code)

    def _retry(self, task: Any, name: Any, code: int) -> None:
        """Do the task again, unless that was done often enough."""
        self._deaths[name] += 1
        if self._deaths[name] > RETRIES + 2:
            what = f"its processes are killed ({_cause(code)}), and no item alone is the cause"
            fix = "look at memory and the system's log; use fewer workers"
            raise ResourceError(153, f"job {name}", what, fix)
        self._pool.tasks.appendleft(task)

    def _probe(self, task: _Probe) -> None:
        self._last[task.number] = task.start
        self._pool.tasks.appendleft(task)

    def _blame(self, task: _Probe, code: int) -> None:
        """Note the probe's latest item as deadly, and search on behind it."""
        item = self._last[task.number]
        name = self._work.source.name(item)
        what = f"the process that reads it is killed ({_cause(code)})"
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
