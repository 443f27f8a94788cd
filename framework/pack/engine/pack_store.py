"""The packing run: items in, one store out.

The bytes are the same for any number of processes, machines and interruptions.
"""

import json
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, final

from framework import __version__
from framework.contracts.records import Manifest
from framework.errors import DataError, ResourceError
from framework.measure.host import num_cores
from framework.pack.engine.disk_space import check_space, needed_bytes, with_shortage
from framework.pack.engine.jobs import (
    DiskFull,
    Increment,
    PackPlan,
    PackWork,
    disk_error,
    make_plan,
    stamp_of,
    stamps,
)
from framework.pack.engine.journal import JobResult, Journal
from framework.pack.engine.packing import OnProgress, Packed, Packing, PackProgress
from framework.pack.engine.publish import (
    check_place,
    is_put,
    list_bad,
    put_folder,
    put_joined,
    size_of,
    whole,
)
from framework.pack.engine.supervise import JobSupervisor
from framework.system.durable import remove_leftovers, tidied
from framework.system.lock import PATIENCE_S, locked


def _ignore(_: PackProgress) -> None:
    """Ignore progress."""


def pack(
    packing: Packing,
    num_workers: int | None = 0,
    on_progress: OnProgress = _ignore,
    start_method: str | None = None,
) -> Packed:
    """Pack a store.

    Finished jobs stay in ``PATH.parts`` whatever happens, and the same call resumes from them. An
    old store at ``path`` stays until the new one is complete.

    Args:
        packing: What is packed, and into what.
        num_workers: Processes; 0: this one; None: one per core if there is more than one job.
        on_progress: Called with the progress.
        start_method: As in ``ProcessPool``.

    Raises:
        DataError: D115 if something else than a store of ours is at ``path``; D150 if all items are
            bad; others for a bad item.
        ResourceError: R101, R151: the disk is full. R150, R154: another packing uses ``path``.
            R153: processes keep being killed.

    """
    start = time.perf_counter()
    try:
        check_place(Path(packing.path))
    except OSError as error:
        what, fix = f"cannot be used: {error.strerror}", "choose another output.path"
        raise ResourceError(101, packing.path, what, fix) from error
    with ExitStack() as locks:
        # Parts share the output, and each holds a lock on its own part.
        is_part = packing.part is not None
        if is_part:
            locks.enter_context(_locked(packing.path, f"part{packing.part}.lock"))
        locks.enter_context(_locked(packing.path, "lock", shared=is_part))
        run = _Run(packing, on_progress)
        try:
            packed = run.pack(num_workers, start_method)
        except ResourceError as error:
            full = disk_error(error, str(run.path))
            if not isinstance(full, DiskFull):
                raise
            run.tidy()  # before free space is measured
            raise with_shortage(full, run.path, run.needed()) from error
        finally:
            run.tidy()
    return replace(packed, seconds=time.perf_counter() - start)


def _locked(
    path: str, ending: str, *, shared: bool = False, patience_s: float = PATIENCE_S
) -> AbstractContextManager[None]:
    lock = Path(f"{path}.{ending}")
    fix = "wait until it ends, stop it, or choose another output.path"

    def busy(holder: str) -> ResourceError:
        return ResourceError(150, str(lock), f"{holder} is packing the same output", fix)

    return locked(lock, busy, shared=shared, patience_s=patience_s)


@final
class _Run:
    """One call of ``pack``, under its locks."""

    def __init__(self, packing: Packing, on_progress: OnProgress) -> None:
        self.packing, self.on_progress, self.path = packing, on_progress, Path(packing.path)
        self.journal = Journal(packing.path, packing.suffix)
        self.tidy()
        self.manifest = _manifest(packing)
        if packing.make_part is not None:  # what the writer refuses is said before all the work
            packing.make_writer(packing.path, fields=self.manifest.fields, num_records=0).abort()
        if packing.part is None:
            self.plan = self._begin()
        else:
            with _locked(
                packing.path, "begin.lock", patience_s=math.inf
            ):  # parts may start together
                self.plan = self._begin()
        self.work = PackWork(
            packing.source,
            packing.prepare,
            self.manifest,
            packing.make_part or packing.make_writer,
            self.journal,
            self.plan,
            skip=packing.on_error == "skip",
        )
        self.resumed = 0
        self.now = PackProgress("packing", 0, self.plan.num_items, 0, 0, 0)

    def _begin(self) -> PackPlan:
        """Return the journal's plan if the same command has begun; else begin a new journal.

        The old plan stays even if a repaired item would change it. R154 if another command has
        begun, and its parts may be running.
        """
        packing = self.packing
        facts = _facts(self.manifest, packing)
        begun = self.journal.begun()
        if begun is not None and begun.get("facts") == facts:
            return PackPlan(**begun["plan"])
        if begun is not None and packing.part is not None:
            raise self.journal.foreign()
        self.journal.remove()
        plan = make_plan(packing.source, packing.prepare)
        needed = needed_bytes(plan, self.manifest, plan.num_jobs, packing.one_file, packing.suffix)
        check_space(self.path, needed)
        self.journal.begin({"facts": facts, "plan": asdict(plan)})
        return plan

    def tidy(self) -> None:
        """Remove temporary files of ended processes: ours, or those of a killed packing."""
        for place in (self.path, self.journal.folder, self.journal.files):
            remove_leftovers(place)
            tidied(place)
        tidied(self.path.parent)

    def pack(self, num_workers: int | None, start_method: str | None) -> Packed:
        """Do the missing jobs of our share, and make the store once all jobs are done."""
        packing = self.packing
        noted = _all_of([self.journal.noted(number) for number in range(self.plan.num_jobs)])
        if not packing.one_file and noted and is_put(self.journal, noted, self.path):
            return self._close(noted)
        share = packing.share(self.plan.num_jobs)
        finished = [job for number in share if (job := self._finished(number)) is not None]
        missing = sorted(set(share) - {job.number for job in finished})
        self._resume(share, finished)
        check_space(self.path, self.needed(len(missing)))
        if num_workers is None:
            num_workers = num_cores() if len(missing) > 1 else 0
        num_workers = min(num_workers, max(1, len(missing)))
        with JobSupervisor(
            self.work, packing.make_writer, num_workers, self._add, start_method
        ) as supervisor:
            for _ in supervisor.do(missing):
                pass
            if packing.part is None:
                return self._finish(supervisor)
            with _locked(packing.path, "finish.lock", patience_s=math.inf):
                return self._finish(supervisor)

    def _finished(self, number: int) -> JobResult | None:
        """Return a job's result if its file is there, its items are unchanged, and none is bad.

        Bad items do not matter if they may be left out.
        """
        result = self.journal.done(number)
        if result is None or (result.bad and not self.work.skip):
            return None
        stamp = stamp_of(stamps(self.work.source, *self.plan.span(number)))
        return result if result.stamp == stamp else None

    def _num_items(self, numbers: Sequence[int]) -> int:
        spans = [self.plan.span(number) for number in numbers]
        return sum(stop - start for start, stop in spans)

    def _resume(self, share: range, finished: Sequence[JobResult]) -> None:
        self.resumed = self._num_items([job.number for job in finished])
        self.now = PackProgress(
            "packing",
            self.resumed,
            self._num_items(share),
            sum(job.num_records for job in finished),
            sum(job.num_bytes for job in finished),
            self.resumed,
        )
        self.on_progress(self.now)

    def _add(self, done: Increment) -> None:
        now = self.now
        self.now = now._replace(
            items=now.items + done.items,
            records=now.records + done.records,
            num_bytes=now.num_bytes + done.num_bytes,
        )
        self.on_progress(self.now)

    def needed(self, num_missing: int | None = None) -> int:
        """Return the bytes that the missing jobs of our share, and joining, take."""
        packing = self.packing
        if num_missing is None:
            share = packing.share(self.plan.num_jobs)
            num_missing = sum(self.journal.done(number) is None for number in share)
        return needed_bytes(self.plan, self.manifest, num_missing, packing.one_file, packing.suffix)

    def _finish(self, supervisor: JobSupervisor) -> Packed:
        """Make the store if all jobs are done, by whatever process."""
        if self.journal.begun() is None:  # another part made the store while we waited
            return Packed(None, self.now.items)
        jobs = [self.journal.done(number) for number in range(self.plan.num_jobs)]
        results = _all_of(jobs)
        if results is None:
            return Packed(None, self.now.items, waiting=jobs.count(None), resumed=self.resumed)
        manifest = whole(self.manifest, results)
        if not manifest.num_records:
            raise self._nothing(results)
        if self.packing.one_file:
            is_joined = self.packing.make_part is not None or len(results) > 1
            if is_joined:
                self.now = PackProgress("joining", 0, manifest.num_records, 0, 0, 0)
                supervisor.join(manifest, results)
            put_joined(self.journal, results, self.path, is_joined)
        else:
            put_folder(manifest, results, self.journal, self.path)
        return self._close(results)

    def _close(self, results: Sequence[JobResult]) -> Packed:
        """List bad items and remove the journal, since the store is at its place."""
        bad = [item for job in results for item in job.bad]
        list_bad(self.path, bad)
        self.journal.remove()
        manifest, size = whole(self.manifest, results), size_of(self.path)
        return Packed(manifest, self.plan.num_items, size, self.resumed, bad=bad)

    def _nothing(self, results: Sequence[JobResult]) -> DataError:
        bad = [item for job in results for item in job.bad]
        listing = list_bad(self.path, bad)
        self.journal.remove()
        what = "its items hold no record"
        if bad:
            what = f"all {len(bad)} items are bad, as {listing} says"
        return DataError(150, self.manifest.source, what, "give something to pack")


def _all_of(results: Sequence[JobResult | None]) -> list[JobResult] | None:
    """Return the results, or None if one is missing."""
    done = [result for result in results if result is not None]
    return done if len(done) == len(results) else None


def _manifest(packing: Packing) -> Manifest:
    """Return the manifest of the prepared records. Counts are not known yet."""
    source = packing.source.manifest
    fields, options = source.fields, dict(source.options)
    if packing.prepare is not None:
        fields = packing.prepare.fields(packing.source)
        options.update(packing.prepare.options)
    return replace(source, fields=fields, options=options, class_counts=(), statistics={})


def _facts(manifest: Manifest, packing: Packing) -> dict[str, Any]:
    """Return what decides the bytes of every job, besides the items, as JSON gives it back."""
    facts = {
        "paceline": __version__,
        "fields": {name: asdict(field) for name, field in manifest.fields.items()},
        "classes": list(manifest.classes),
        "source": manifest.source,
        "options": manifest.options,
        "num_items": manifest.num_records,
        "suffix": packing.suffix,
        "layout": packing.layout,
    }
    return json.loads(json.dumps(facts))
