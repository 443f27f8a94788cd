"""What worker processes are given to do, and what is done when one is killed."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, final

from framework.contracts.records import Manifest
from framework.errors import DataError, ResourceError
from framework.pack.engine.jobs import Job, MakeWriter, Moved, PackWork, do_job, probe, said_of_disk
from framework.pack.engine.journal import Bad, Done
from framework.pack.engine.process_pool import Crew, Say
from framework.pack.engine.publish import join

RETRIES = 1  # of what was killed, before it is asked why


class _Probe(NamedTuple):
    """Find the deadly ones among items ``start``..``stop`` of job ``number``."""

    number: int
    start: int
    stop: int


class _Join(NamedTuple):
    """Make one file of all jobs' files."""

    manifest: Manifest
    done: Sequence[Done]


def do_task(work: PackWork, make_writer: MakeWriter, task: Any, say: Say) -> Any:
    """A job, a probe, or the joining; in whatever process. DiskFull where there is no room."""
    try:
        if isinstance(task, Job):
            return do_job(work, task, say)
        if isinstance(task, _Probe):
            return probe(work, task.start, task.stop, say)
        return join(task.manifest, task.done, work.journal, make_writer, say)
    except (OSError, ResourceError) as error:
        raise said_of_disk(error, str(work.journal.folder)) from error


@final
class Overseer:
    """Has jobs done by a crew. A context, as the crew is. ``moved`` is told of progress, also backwards, where work was lost.

    A job whose process was killed is done again, once; then its items are tried one by one, and those that kill count as bad input.
    """

    def __init__(
        self,
        work: PackWork,
        make_writer: MakeWriter,
        num_workers: int,
        moved: Callable[[Moved], None],
        start_method: str | None,
    ) -> None:
        self._work, self._moved = work, moved
        self._crew = Crew(
            partial(do_task, work, make_writer), num_workers, self._heard, start_method
        )
        self._deaths = Counter[Any]()
        self._deadly: dict[int, list[Bad]] = {}
        self._under_way: dict[int, Moved] = {}
        self._last: dict[int, int] = {}  # the item that each probe has come to

    def __enter__(self) -> "Overseer":
        return self

    def __exit__(self, *_: object) -> None:
        self._crew.__exit__()

    def do(self, numbers: Sequence[int]) -> Iterator[Done]:
        """Do the jobs of these numbers. DataError D154 names an item that kills, where none may be skipped."""
        for event in self._crew.run(Job(number) for number in numbers):
            if event.kind == "lost":
                self._lost(event.task, event.value)
            elif isinstance(event.task, _Probe):
                self._again(event.task.number)
            else:
                self._under_way.pop(event.task.number, None)
                yield event.value

    def join(self, manifest: Manifest, done: Sequence[Done]) -> None:
        """Make one file of the jobs' files."""
        for event in self._crew.run([_Join(manifest, done)]):
            if event.kind == "lost":
                self._count(event.task, "join", event.value)

    def _heard(self, task: Any, said: Any) -> None:
        if isinstance(task, _Probe):
            self._last[task.number] = said
            return
        if isinstance(task, Job):
            before = self._under_way.get(task.number, Moved(0))
            self._under_way[task.number] = Moved(
                *(a + b for a, b in zip(before, said, strict=True))
            )
        self._moved(said)

    def _lost(self, task: Any, code: int) -> None:
        if isinstance(task, _Probe):
            self._found(task, code)
            return
        gone = self._under_way.pop(task.number, Moved(0))
        self._moved(Moved(*(-number for number in gone)))
        start, stop = self._work.plan.span(task.number)
        if self._deaths[task.number] == RETRIES and task.number not in self._deadly:
            self._deaths[task.number] += 1
            self._deadly[task.number] = []
            self._probe(_Probe(task.number, start, stop))
        else:
            self._count(task, task.number, code)

    def _count(self, task: Any, name: Any, code: int) -> None:
        """Give the task again, unless that was done often enough. ResourceError R153."""
        self._deaths[name] += 1
        if self._deaths[name] > RETRIES + 2:
            what = f"the processes that do it are killed ({_cause(code)}), and no item alone is the cause"
            raise ResourceError(
                153, f"job {name}", what, "look at memory and the system's log; use fewer workers"
            )
        self._crew.tasks.appendleft(task)

    def _probe(self, task: _Probe) -> None:
        self._last[task.number] = task.start
        self._crew.tasks.appendleft(task)

    def _found(self, task: _Probe, code: int) -> None:
        """The item that the probe had come to is deadly. The search goes on behind it."""
        item = self._last[task.number]
        name = self._work.source.name(item)
        what = f"the process that reads it is killed ({_cause(code)})"
        if not self._work.skip:
            raise DataError(
                154, name, what, "mend or remove it, or leave it out with pack.on_error=skip"
            )
        self._deadly[task.number].append(Bad(item, name, "D154", what))
        if item + 1 < task.stop:
            self._probe(task._replace(start=item + 1))
        else:
            self._again(task.number)

    def _again(self, number: int) -> None:
        self._crew.tasks.appendleft(Job(number, tuple(self._deadly[number])))


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
