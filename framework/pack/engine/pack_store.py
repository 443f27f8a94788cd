"""The packing run: items in, one store out, the same bytes whatever the number of processes, machines and interruptions."""

import json
import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, final

from framework import __version__
from framework.contracts.records import Field, Manifest
from framework.errors import DataError, ResourceError
from framework.measure.host import num_cores
from framework.pack.engine.disk_space import check_space, needed_bytes, with_shortage
from framework.pack.engine.jobs import (
    DiskFull,
    Moved,
    PackPlan,
    PackWork,
    make_plan,
    said_of_disk,
    stamp_of,
    stamps,
)
from framework.pack.engine.journal import Done, Journal
from framework.pack.engine.packing import Packed, Packing, PackProgress, Tell
from framework.pack.engine.publish import (
    check_place,
    is_put,
    list_bad,
    put_folder,
    put_joined,
    size_of,
    whole,
)
from framework.pack.engine.supervise import Overseer
from framework.system.durable import remove_leftovers, tidied
from framework.system.lock import locked


def silent(_: PackProgress) -> None:
    """For whom progress does not matter."""


def pack(
    packing: Packing,
    num_workers: int | None = 0,
    tell: Tell = silent,
    start_method: str | None = None,
) -> Packed:
    """Pack with ``num_workers`` processes (0: in this one; None: one per core where there is more than one job).

    Finished jobs stay in ``PATH.parts`` whatever happens, and the same call goes on from them; what stood at ``path`` stays until the
    new store is whole. DataError D115: that is no store of ours; others name a bad item (D150: there are no others). ResourceError R101, R151: the disk is full; R150:
    another packer is at it; R153: processes keep being killed.
    """
    start = time.perf_counter()
    try:
        check_place(Path(packing.path))
    except OSError as error:
        raise ResourceError(
            101, packing.path, f"cannot be used: {error.strerror}", "choose another output.path"
        ) from error
    with _locks(packing):
        run = _Run(packing, tell)
        try:
            packed = run.pack(num_workers, start_method)
        except ResourceError as error:
            full = said_of_disk(error, str(run.path))
            if not isinstance(full, DiskFull):
                raise
            run.tidy()  # gives room back
            raise with_shortage(full, run.path, run.needed()) from error
        finally:
            run.tidy()
    return replace(packed, seconds=time.perf_counter() - start)


@contextmanager
def _locks(packing: Packing) -> Generator[None, None, None]:
    """The whole output for a packer alone; shared among those who do parts, each of whom has a part of its own."""
    with ExitStack() as stack:
        if packing.part is not None:
            stack.enter_context(_locked(packing.path, f"part{packing.part}.lock"))
        stack.enter_context(_locked(packing.path, "lock", shared=packing.part is not None))
        yield


def _locked(path: str, ending: str, **how: Any) -> AbstractContextManager[None]:
    lock = Path(f"{path}.{ending}")
    fix = "wait until it ends, stop it, or choose another output.path"
    return locked(
        lock,
        lambda holder: ResourceError(150, str(lock), f"{holder} is packing the same output", fix),
        **how,
    )


@final
class _Run:
    """One call of ``pack``, under its locks."""

    def __init__(self, packing: Packing, tell: Tell) -> None:
        self.packing, self.tell, self.path = packing, tell, Path(packing.path)
        self.journal = Journal(packing.path, packing.suffix)
        self.tidy()
        source, prepare = packing.source, packing.prepare
        self.manifest = _manifest(packing)
        if packing.make_part is not None:  # what it refuses is said now, not after all the work
            packing.make_writer(packing.path, fields=self.manifest.fields, num_records=0).abort()
        self.plan = self._begin()
        make_part, skip = packing.make_part or packing.make_writer, packing.on_error == "skip"
        self.work = PackWork(
            source, prepare, self.manifest, make_part, self.journal, self.plan, skip
        )
        self.resumed = 0
        self.now = PackProgress("packing", 0, self.plan.num_items, 0, 0, 0)

    def tidy(self) -> None:
        """Remove what dead processes left: ours, which were ended, or those of a packer that was killed."""
        for place in (self.path, self.journal.folder, self.journal.files):
            remove_leftovers(place)
            tidied(place)
        tidied(self.path.parent)

    def pack(self, num_workers: int | None, start_method: str | None) -> Packed:
        """Do what is not done yet of our share, and finish where all is done."""
        packing = self.packing
        noted = self._noted()
        if not packing.one_file and noted and is_put(self.journal, noted, self.path):
            return self._close(noted)
        mine = packing.share(self.plan.num_jobs)
        finished = [done for number in mine if (done := self._finished(number)) is not None]
        todo = sorted(set(mine) - {done.number for done in finished})
        self._resume(mine, finished)
        check_space(self.path, self.needed(len(todo)))
        if num_workers is None:
            num_workers = num_cores() if len(todo) > 1 else 0
        with Overseer(
            self.work,
            packing.make_writer,
            min(num_workers, max(1, len(todo))),
            self._moved,
            start_method,
        ) as crew:
            for _ in crew.do(todo):
                pass
            if packing.part is None:
                return self._finish(crew)
            with _locked(packing.path, "finish.lock", patience_s=math.inf):
                return self._finish(crew)

    def _begin(self) -> PackPlan:
        if self.packing.part is None:
            return self._taken_up()
        with _locked(
            self.packing.path, "begin.lock", patience_s=math.inf
        ):  # several parts may start at once
            return self._taken_up()

    def _taken_up(self) -> PackPlan:
        """Take up what the same command has left, its plan too, which a mended item might change; what another one has left goes.
        ResourceError R154 where others may be at that.
        """
        facts = _facts(self.manifest, self.packing)
        begun = self.journal.begun()
        if begun is not None and begun.get("facts") == facts:
            return PackPlan(**begun["plan"])
        if begun is not None and self.packing.part is not None:
            raise self.journal.foreign()
        self.journal.remove()
        plan = make_plan(self.packing.source, self.packing.prepare)
        check_space(
            self.path,
            needed_bytes(
                plan, self.manifest, plan.num_jobs, self.packing.one_file, self.packing.suffix
            ),
        )
        self.journal.begin({"facts": facts, "plan": asdict(plan)})
        return plan

    def _noted(self) -> list[Done] | None:
        """All jobs, if all were finished at some time."""
        found = [self.journal.noted(number) for number in range(self.plan.num_jobs)]
        return [done for done in found if done is not None] if None not in found else None

    def _finished(self, number: int) -> Done | None:
        """Job ``number``, if its file is there, its items are what they were, and what it left out may be left out."""
        done = self.journal.done(number)
        if done is None or (done.bad and not self.work.skip):
            return None
        return (
            done
            if done.stamp == stamp_of(stamps(self.work.source, *self.plan.span(number)))
            else None
        )

    def _resume(self, mine: range, finished: Sequence[Done]) -> None:
        spans = [self.plan.span(number) for number in mine]
        self.resumed = sum(
            stop - start for start, stop in (self.plan.span(done.number) for done in finished)
        )
        records, num_bytes = (
            sum(done.num_records for done in finished),
            sum(done.num_bytes for done in finished),
        )
        num_items = sum(stop - start for start, stop in spans)
        self.now = PackProgress(
            "packing", self.resumed, num_items, records, num_bytes, self.resumed
        )
        self.tell(self.now)

    def _moved(self, moved: Moved) -> None:
        now = self.now
        self.now = now._replace(
            items=now.items + moved.items,
            records=now.records + moved.records,
            num_bytes=now.num_bytes + moved.num_bytes,
        )
        self.tell(self.now)

    def needed(self, num_todo: int | None = None) -> int:
        """Bytes that going on from here takes."""
        if num_todo is None:
            num_todo = sum(
                self.journal.done(number) is None
                for number in self.packing.share(self.plan.num_jobs)
            )
        return needed_bytes(
            self.plan, self.manifest, num_todo, self.packing.one_file, self.packing.suffix
        )

    def _finish(self, crew: Overseer) -> Packed:
        """Make the store if all jobs are done, whoever did them."""
        if self.journal.begun() is None:
            return Packed(None, self.now.items)  # another part has finished while we waited for it
        found = [self.journal.done(number) for number in range(self.plan.num_jobs)]
        done = [job for job in found if job is not None]
        if len(done) < len(found):
            return Packed(
                None, self.now.items, waiting=len(found) - len(done), resumed=self.resumed
            )
        manifest = whole(self.manifest, done)
        if not manifest.num_records:
            return self._give_up(done)
        if self.packing.one_file:
            joins = self.packing.make_part is not None or len(done) > 1
            if joins:
                self.now = PackProgress("joining", 0, manifest.num_records, 0, 0, 0)
                crew.join(manifest, done)
            put_joined(self.journal, done, self.path, joins)
        else:
            put_folder(manifest, done, self.journal, self.path)
        return self._close(done)

    def _close(self, done: Sequence[Done]) -> Packed:
        """The store is there: what led to it can go."""
        bad = [item for job in done for item in job.bad]
        list_bad(self.path, bad)
        self.journal.remove()
        return Packed(
            whole(self.manifest, done),
            self.plan.num_items,
            size_of(self.path),
            self.resumed,
            bad=bad,
        )

    def _give_up(self, done: Sequence[Done]) -> Packed:
        bad = [item for job in done for item in job.bad]
        listing = list_bad(self.path, bad)
        self.journal.remove()
        what = (
            f"all {len(bad)} items are bad, as {listing} says"
            if bad
            else "its items hold no record"
        )
        raise DataError(150, self.manifest.source, what, "give something to pack")


def _manifest(packing: Packing) -> Manifest:
    """Of the records as they will be stored; counts are not known yet."""
    source, prepare = packing.source, packing.prepare
    inputs = source.manifest
    fields: Mapping[str, Field] = inputs.fields if prepare is None else prepare.fields(source)
    options = {**inputs.options, **({} if prepare is None else prepare.options)}
    return replace(inputs, fields=fields, options=options, class_counts=(), statistics={})


def _facts(manifest: Manifest, packing: Packing) -> dict[str, Any]:
    """What decides the bytes of every job, besides the items themselves; as JSON gives it back."""
    found = {
        "paceline": __version__,
        "fields": {name: asdict(field) for name, field in manifest.fields.items()},
        "classes": list(manifest.classes),
        "source": manifest.source,
        "options": manifest.options,
        "num_items": manifest.num_records,
        "suffix": packing.suffix,
        "layout": packing.layout,
    }
    return json.loads(json.dumps(found))
