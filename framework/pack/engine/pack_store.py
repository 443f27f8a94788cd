"""The packing run: items in, one store out.

The bytes are the same for any number of processes, machines and interruptions.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from framework import __version__
from framework.contracts.class_labels import ONE_PER_RECORD
from framework.contracts.records import Field, Manifest, code_of
from framework.errors import ConfigError, DataError, ResourceError
from framework.measure.host import num_cores
from framework.pack.engine import disk_space, jobs, publish
from framework.pack.engine.jobs import DiskFull, Increment, PackPlan, PackWork
from framework.pack.engine.journal import JobResult, Journal
from framework.pack.engine.packing import (
    OnProgress,
    Packed,
    PackedSplit,
    Packing,
    PackProgress,
)
from framework.pack.engine.publish import Joining
from framework.pack.engine.supervise import JobSupervisor
from framework.system.durable import remove_leftovers, tidied
from framework.system.lock import PATIENCE_S, locked


def _ignore(_: PackProgress | str) -> None:
    """Ignore progress, or a note."""


def pack(
    packing: Packing,
    num_workers: int | None = 0,
    on_progress: OnProgress = _ignore,
    start_method: str | None = None,
    on_note: Callable[[str], None] = _ignore,
) -> Packed:
    """Pack a store.

    Finished jobs stay in ``PATH.parts`` whatever happens, and the same call resumes from them,
    unless the user's code that makes the records has changed. An old store at ``path`` stays until
    the new one is complete. With splits, none of their old stores is replaced before all new ones
    are complete.

    Args:
        packing: What is packed, and into what.
        num_workers: Processes; 0: this one; None: one per core if there is more than one job.
        on_progress: Called with the progress.
        start_method: As in ``ProcessPool``.
        on_note: Called with a note for the user.

    Raises:
        ConfigError: C161 for classes without a label that numbers them. C242, C244: a split cannot
            be made.
        DataError: D115 if something else than a store of ours is at ``path``; D150 if all items are
            bad; D167 for a ragged field without values; others for a bad item.
        ResourceError: R101, R151: the disk is full. R150, R154: another packing uses ``path``.
            R153: processes keep being killed.
    """
    start = time.perf_counter()
    for path in packing.paths.values():
        _check_place(path)
    with ExitStack() as locks:
        # Parts share the output, and each holds a lock on its own part.
        is_part = packing.part is not None
        shared_path = packing.shared_path
        if is_part:
            locks.enter_context(_locked(shared_path, f"part{packing.part}.lock"))
        for path in dict.fromkeys((shared_path, *packing.paths.values())):
            locks.enter_context(_locked(path, "lock", shared=is_part))
        run = _Run(packing, on_progress, on_note)
        packed = _packed(run, num_workers, start_method)
    return replace(packed, seconds=time.perf_counter() - start)


def _check_place(path: str) -> None:
    try:
        publish.check_place(Path(path))
    except OSError as error:
        what = f"cannot be used: {error.strerror}"
        fix = "choose another output.path"
        raise ResourceError(101, path, what, fix) from error


def _packed(run: "_Run", num_workers: int | None, start_method: str | None) -> Packed:
    try:
        return run.pack(num_workers, start_method)
    except ResourceError as error:
        full = jobs.disk_error(error, str(run.path))
        if not isinstance(full, DiskFull):
            raise
        run.tidy()  # before free space is measured
        raise disk_space.with_shortage(full, run.path, run.needed()) from error
    finally:
        run.tidy()


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

    def __init__(
        self, packing: Packing, on_progress: OnProgress, on_note: Callable[[str], None]
    ) -> None:
        self.packing = packing
        self.on_progress = on_progress
        self.on_note = on_note
        self.path = Path(packing.shared_path)
        self.journal = Journal(packing.shared_path, packing.suffix)
        self.tidy()
        self.manifest = _manifest(packing)
        if packing.make_part is not None:  # what the writer refuses is said before all the work
            packing.make_writer(packing.path, fields=self.manifest.fields, num_records=0).abort()
        with self._exclusive("begin.lock"):
            self.plan = self._begin()
        self.work = PackWork(
            packing.source,
            packing.prepare,
            self.manifest,
            packing.make_part or packing.make_writer,
            self.journal,
            self.plan,
            skip_bad=packing.on_error == "skip",
            split=packing.split,
        )
        self.resumed = 0
        self.now = PackProgress("packing", 0, self.plan.num_items, 0, 0, 0)

    def _exclusive(self, ending: str) -> AbstractContextManager[None]:
        """Lock a step that parts must not do at the same time."""
        if self.packing.part is None:
            return nullcontext()
        return _locked(str(self.path), ending, patience_s=math.inf)

    def _begin(self) -> PackPlan:
        """Return the journal's plan if the same command has begun; else begin a new journal.

        The old plan stays even if a repaired item would change it. R154 if another command has
        begun, and its parts may be running.
        """
        packing = self.packing
        facts = _facts(self.manifest, packing)
        split = packing.split and [*map(list, packing.split.shares.items()), packing.split.by]
        begun = self.journal.begun()
        if begun is not None and self._continues(begun, facts, split):
            return PackPlan(**begun["plan"])
        if begun is not None and packing.part is not None:
            raise self.journal.foreign()
        self.journal.remove()
        plan = jobs.make_plan(packing.source, packing.prepare)
        disk_space.check_space(self.path, self._needed(plan, plan.num_jobs))
        self.journal.begin({"facts": facts, "plan": asdict(plan), "split": split})
        return plan

    def _continues(self, begun: Mapping[str, Any], facts: dict[str, Any], split: Any) -> bool:
        """Return whether finished jobs are kept, and note that they are not for the code's sake.

        Shares do not change the jobs, but all parts must agree on them. Parts share their jobs even
        if nobody can tell whether the state is the same.
        """
        is_part = self.packing.part is not None
        code = code_of(self.packing.source)
        before = begun.get("facts", {})
        if before == facts and (code.state is not None or is_part):
            return not is_part or begun.get("split") == split
        if not is_part and {**before, "code": facts["code"]} == facts:
            why = f"the code or the state of {facts['source']} has changed"
            if code.state is None:
                why = f"{facts['source']} may have changed: it cannot be pickled ({code.fault})"
            self.on_note(f"{self.journal.folder}: packing starts anew, since {why}")
        return False

    def tidy(self) -> None:
        """Remove temporary files of ended processes: ours, or those of a killed packing."""
        stores = [Path(path) for path in self.packing.paths.values()]
        for place in (self.path, self.journal.folder, self.journal.files, *stores):
            remove_leftovers(place)
            tidied(place)
            tidied(place.parent)

    def pack(self, num_workers: int | None, start_method: str | None) -> Packed:
        """Do the missing jobs of our share, and make the store once all jobs are done."""
        packing = self.packing
        noted = _all_of([self.journal.noted(number) for number in range(self.plan.num_jobs)])
        if not packing.one_file and noted and publish.is_put(self.journal, noted, self.path):
            return self._close(noted)
        share = packing.share(self.plan.num_jobs)
        finished = [job for number in share if (job := self._finished(number)) is not None]
        missing = sorted(set(share) - {job.number for job in finished})
        self._resume(share, finished)
        disk_space.check_space(self.path, self._needed(self.plan, len(missing)))
        return self._do_jobs(missing, num_workers, start_method)

    def _do_jobs(
        self, missing: Sequence[int], num_workers: int | None, start_method: str | None
    ) -> Packed:
        """Do jobs, and make the store once all jobs are done."""
        if num_workers is None:
            num_workers = num_cores() if len(missing) > 1 else 0
        num_workers = min(num_workers, max(1, len(missing)))
        with JobSupervisor(
            self.work, self.packing.make_writer, num_workers, self._add, start_method
        ) as supervisor:
            for _ in supervisor.do(missing):
                pass
            with self._exclusive("finish.lock"):
                return self._finish(supervisor)

    def _finished(self, number: int) -> JobResult | None:
        """Return a job's result if its file is there, its items are unchanged, and none is bad.

        Bad items do not matter if they may be left out.
        """
        result = self.journal.done(number)
        if result is None or (result.bad and not self.work.skip_bad):
            return None
        stamp = jobs.hash_of(jobs.stamps(self.work.source, *self.plan.item_range(number)))
        return result if result.stamp == stamp else None

    def _num_items(self, numbers: Sequence[int]) -> int:
        spans = [self.plan.item_range(number) for number in numbers]
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
        sums = Increment(now.items, now.records, now.num_bytes).plus(done)
        self.now = now._replace(**sums._asdict())
        self.on_progress(self.now)

    def needed(self) -> int:
        """Return the bytes that the missing jobs of our share, and joining, take."""
        share = self.packing.share(self.plan.num_jobs)
        num_missing = sum(self.journal.done(number) is None for number in share)
        return self._needed(self.plan, num_missing)

    def _needed(self, plan: PackPlan, num_jobs: int) -> int:
        is_joined = self.packing.one_file and (plan.num_jobs > 1 or self.packing.split is not None)
        suffix = self.packing.suffix
        return disk_space.needed_bytes(plan, self.manifest, num_jobs, is_joined, suffix)

    def _finish(self, supervisor: JobSupervisor) -> Packed:
        """Make the store if all jobs are done, by whatever process."""
        if self.journal.begun() is None:  # another part made the store while we waited
            return Packed(None)
        done = [self.journal.done(number) for number in range(self.plan.num_jobs)]
        results = _all_of(done)
        if results is None:
            return Packed(None, waiting=done.count(None), resumed=self.resumed)
        manifest = publish.whole(self.manifest, results)
        if not manifest.num_records:
            return self._close(results)
        if self.packing.split is not None:
            tasks = publish.join_tasks(self.packing.split, manifest, results, self.journal)
            self._join(supervisor, manifest, tasks.values())
            return self._close(results, publish.put_splits(tasks, self.packing.paths))
        self._put(supervisor, manifest, results)
        return self._close(results)

    def _put(
        self, supervisor: JobSupervisor, manifest: Manifest, results: Sequence[JobResult]
    ) -> None:
        """Put a store without splits at its place."""
        if not self.packing.one_file:
            publish.put_folder(manifest, results, self.journal, self.path)
            return
        is_joined = self.packing.make_part is not None or len(results) > 1
        if is_joined:
            target = publish.joined_path(self.journal)
            self._join(supervisor, manifest, [Joining(manifest, results, target)])
        publish.put_joined(self.journal, results, self.path, is_joined)

    def _join(
        self, supervisor: JobSupervisor, manifest: Manifest, tasks: Iterable[Joining]
    ) -> None:
        self.now = PackProgress("joining", 0, manifest.num_records, 0, 0, 0)
        supervisor.join(tasks)

    def _close(self, results: Sequence[JobResult], splits: Sequence[PackedSplit] = ()) -> Packed:
        """List bad items and remove the journal, since the store is at its place, if any is."""
        bad = [item for job in results for item in job.bad]
        listing = publish.list_bad(self.path, bad)
        self.journal.remove()
        manifest = publish.whole(self.manifest, results)
        if not manifest.num_records:
            what = "its items hold no record"
            if bad:
                what = f"all {len(bad)} items are bad, as {listing} says"
            raise DataError(150, manifest.source, what, "give something to pack")
        num_bytes = sum(publish.size_of(Path(path)) for path in self.packing.paths.values())
        return Packed(manifest, num_bytes, self.resumed, bad=bad, splits=splits)


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
    _check_rows(fields, source.source)
    _check_label(source.classes, fields.get("label"))
    if packing.split is not None:
        packing.split.check_fields(fields)
    return replace(source, fields=fields, options=options, class_counts=(), statistics={})


def _check_rows(fields: Mapping[str, Field], source: str) -> None:
    """Check that the rows of ragged fields have a size. DataError D167."""
    for name, field in fields.items():
        if field.encoding == "ragged" and 0 in field.shape[1:]:
            rest = list(field.shape[1:])
            what = f"the rows of its first array have the shape {rest}, which holds no value"
            fix = "give rows a size, also in an array without rows, or leave the field out"
            raise DataError(167, f"{source}: {name}", what, fix)


def _check_label(classes: Sequence[str], label: Field | None) -> None:
    """Check that the numbers of classes are in the records. ConfigError C161."""
    if not classes:
        return
    what = "there is no field label that could number them"
    if label is not None:
        if np.dtype(label.dtype).kind in "biu" and label.shape in (*ONE_PER_RECORD, (None,)):
            return
        what = f"the field label is {label.dtype} {list(label.shape)}, not the number of a class"
    fix = "leave it out, or give a whole number per record as label"
    raise ConfigError(161, f"input.classes = {classes[0]}, ...", what, fix)


def _facts(manifest: Manifest, packing: Packing) -> dict[str, Any]:
    """Return what decides the bytes of every job, besides the items, as JSON gives it back."""
    facts = {
        "paceline": __version__,
        "format": 3,  # of the plan and of the stamps
        "fields": {name: asdict(field) for name, field in manifest.fields.items()},
        "classes": list(manifest.classes),
        "source": manifest.source,
        "options": manifest.options,
        "num_items": manifest.num_records,
        "suffix": packing.suffix,
        "configured": packing.configured,
        "code": code_of(packing.source)[:2],
        # A record whose key does not fit may be left out of a job.
        "key_check": packing.split and packing.split.key_check,
    }
    return json.loads(json.dumps(facts))
