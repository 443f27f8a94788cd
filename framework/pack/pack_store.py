"""The packing run: items in, one store out, or one per split.

The bytes are the same for any number of processes, machines and interruptions.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch

from framework import __version__
from framework.contracts.class_labels import ONE_PER_RECORD
from framework.contracts.records import LABEL, Chunk, Manifest, Ragged, Shard, code_of
from framework.errors import ConfigError, DataError, ResourceError, listed
from framework.measure.host import num_cores
from framework.pack import jobs
from framework.pack import packing as packings
from framework.pack.jobs import ProcessPool, Row, Tell
from framework.pack.packing import BadItem, JobResult, Journal, Packed, Packing, PackProgress
from framework.store.file_store import digest, from_json, to_json
from framework.store.open_store import MANIFEST, open_file, open_store
from framework.store.store_facts import statistics_of
from framework.system import durable

DAMAGED = (104, 105)  # the errors for a file whose manifest shows that it is a store of ours


def pack(
    packing: Packing,
    num_workers: int | None = 0,
    on_progress: packings.OnProgress = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
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
        on_note: Called with a note for the user.

    Raises:
        ConfigError: C161 for classes without a label that numbers them. C242, C244: a split cannot
            be made.
        DataError: D115 if something else than a store of ours is at ``path``; D150 if all items are
            bad; D167 for a ragged field without values; others for a bad item.
        ResourceError: R101, R151: the disk is full. R150, R154: another packing uses ``path``.
            R153: a process was killed.
    """
    start = time.perf_counter()
    for path in packing.paths.values():
        try:
            check_place(Path(path))
        except OSError as error:
            what = f"cannot be used: {error.strerror}"
            raise ResourceError(101, path, what, "choose another output.path") from error
    with ExitStack() as locks:
        # Parts share the output, and each holds a lock on its own part.
        is_part = packing.part is not None
        if is_part:
            locks.enter_context(_locked(packing.path, f"part{packing.part}.lock"))
        for path in dict.fromkeys((packing.path, *packing.paths.values())):
            locks.enter_context(_locked(path, "lock", shared=is_part))
        run = _Run(packing, on_progress, on_note)
        try:
            packed = run.pack(num_workers)
        finally:
            run.tidy()
    return replace(packed, seconds=time.perf_counter() - start)


def check_place(path: Path) -> None:
    """Refuse to replace anything but a store of ours, perhaps damaged. DataError D115."""
    if path.is_symlink():
        raise DataError(115, str(path), "is a link", "give the place it points to")
    if not path.exists():
        return
    is_ours = False
    if path.is_dir():
        with suppress(OSError, DataError):
            manifest = from_json(str(path), (path / MANIFEST).read_bytes())
            names = {MANIFEST, *(shard.name for shard in manifest.shards)}
            is_ours = set(os.listdir(path)) <= names
    elif path.is_file():
        try:
            with closing(open_file(str(path))) as store:
                is_ours = bool(store.manifest)
        except DataError as error:
            is_ours = error.args[0] in DAMAGED
    if not is_ours:
        what = "is there already, and is not recognizable as a store of ours"
        raise DataError(115, str(path), what, "choose another output.path, or remove it")


def _locked(
    path: str, ending: str, *, shared: bool = False, patience_s: float = durable.PATIENCE_S
) -> AbstractContextManager[None]:
    lock = Path(f"{path}.{ending}")
    fix = "wait until it ends, stop it, or choose another output.path"

    def busy(holder: str) -> ResourceError:
        return ResourceError(150, str(lock), f"{holder} is packing the same output", fix)

    return durable.locked(lock, busy, shared=shared, patience_s=patience_s)


@final
class _Run:
    """One call of ``pack``, under its locks."""

    def __init__(
        self, packing: Packing, on_progress: packings.OnProgress, on_note: Callable[[str], None]
    ) -> None:
        self.packing, self.on_progress = packing, on_progress
        self.path = Path(packing.path)
        self.journal = Journal(packing.path, packing.suffix)
        self.tidy()
        self.manifest = _manifest(packing)
        if packing.make_part is not None:  # the writer refuses fields before all the work
            packing.make_writer(packing.path, fields=self.manifest.fields, num_records=0).abort()
        with self._exclusive("begin.lock"):
            self.plan = self._begin(on_note)
        self.work = jobs.PackWork(packing, self.manifest, self.journal, self.plan)

    def tidy(self) -> None:
        """Remove temporary files of ended processes: ours, or those of a killed packing."""
        stores = [Path(path) for path in self.packing.paths.values()]
        for place in (self.path, self.journal.folder, self.journal.files, *stores):
            durable.remove_leftovers(place)
            durable.tidied(place)
            durable.tidied(place.parent)

    def _exclusive(self, ending: str) -> AbstractContextManager[None]:
        """Lock a step that parts must not do at the same time."""
        if self.packing.part is None:
            return nullcontext()
        return _locked(str(self.path), ending, patience_s=math.inf)

    def _begin(self, on_note: Callable[[str], None]) -> packings.PackPlan:
        """Return the journal's plan if the same command has begun; else begin a new journal.

        Parts share their jobs even if nobody can tell whether the user's code is the same. R154 if
        another command has begun, whose parts may be running.
        """
        packing, begun, code = self.packing, self.journal.begun(), code_of(self.packing.source)
        split: list[Any] | None = None
        key_check: str | None = None  # what a key must match; "": any text; None: it need not
        if packing.split is not None:
            split = [*map(list, packing.split.shares.items()), packing.split.by]
            if packing.split.field is None:
                key_check = packing.split.pattern.pattern if packing.split.pattern else ""
        facts = {
            # what decides the bytes of every job, besides the items
            "paceline": __version__,
            "format": 4,  # of the plan and of the stamps
            "fields": {name: asdict(field) for name, field in self.manifest.fields.items()},
            "classes": list(self.manifest.classes),
            "source": self.manifest.source,
            "options": self.manifest.options,
            "num_items": self.manifest.num_records,
            "suffix": packing.suffix,
            "configured": packing.configured,
            "code": code[:2],
            # A record whose key does not fit may be left out of a job.
            "key_check": key_check,
        }
        facts = json.loads(json.dumps(facts))
        is_part = packing.part is not None
        if begun is not None:
            before = begun.get("facts", {})
            is_same = before == facts and (code.state is not None or is_part)
            if is_same and (not is_part or begun.get("split") == split):
                return packings.PackPlan(**begun["plan"])
            if is_part:
                what = "was begun by another command (other items, options, output or code)"
                fix = "finish that one, or remove the folder when nobody needs it"
                raise ResourceError(154, str(self.journal.folder), what, fix)
            if {**before, "code": facts["code"]} == facts:
                why = f"the code or the state of {facts['source']} has changed"
                if code.state is None:
                    why = f"{facts['source']} may have changed: it cannot be pickled ({code.fault})"
                on_note(f"{self.journal.folder}: packing starts again, since {why}")
        self.journal.remove()
        plan = jobs.make_plan(packing.source, packing.prepare)
        self._check_space(plan, plan.num_jobs)
        self.journal.begin({"facts": facts, "plan": asdict(plan), "split": split})
        return plan

    def pack(self, num_workers: int | None) -> Packed:
        """Do the missing jobs of our share, and make the store once all jobs are done."""
        packing, journal, num_jobs = self.packing, self.journal, self.plan.num_jobs
        part = packing.part or 0
        share = range(num_jobs * part // packing.parts, num_jobs * (part + 1) // packing.parts)
        num_items = resumed = num_records = num_bytes = 0
        missing: list[int] = []
        for number in share:
            items = self.plan.items(number)
            num_items += len(items)
            result = journal.done(number)
            # Bad items do not matter if they may be left out.
            if result is not None and (not result.bad or packing.on_error == "skip"):
                stamps = jobs.stamps(packing.source, items.start, items.stop)
                if result.stamp == jobs.hash_of(stamps):  # its items are unchanged
                    resumed += len(items)
                    num_records += result.num_records
                    num_bytes += result.num_bytes
                    continue
            missing.append(number)
        # What the rows of tasks are added to.
        self.before = PackProgress("packing", num_items, resumed, resumed, num_records, num_bytes)
        self.on_progress(self.before)
        self._check_space(self.plan, len(missing))
        if num_workers is None:
            num_workers = num_cores() if len(missing) > 1 else 0
        num_workers = min(num_workers, max(1, len(missing)))
        num_rows = max(len(missing), len(packing.paths))
        do = partial(_do_task, self.work)
        with ProcessPool(do, num_workers, num_rows, self._tell) as workers:
            self._do(workers, missing)
            with self._exclusive("finish.lock"):
                return self._finish(workers)

    def _do(self, workers: ProcessPool, tasks: Iterable[Any]) -> None:
        try:
            for _ in workers.run(tasks):
                pass
        except BrokenProcessPool as error:
            read = workers.rows[workers.rows[:, 3] > 0, 3] - 1
            names = [self.packing.source.name(item) for item in read.tolist()]
            what = "a process was killed while it joined the jobs"
            if names:
                what = f"a process was killed while it read {listed(names)} or what follows"
            fix = "look at memory and the system's log, use fewer workers; the same command resumes"
            raise ResourceError(153, str(self.path), what, fix) from error

    def _tell(self, workers: ProcessPool) -> None:
        phase, num_items, resumed, *before = self.before
        done = (workers.rows.sum(0)[:3] + before).tolist()
        self.on_progress(PackProgress(phase, num_items, resumed, *done))

    def _finish(self, workers: ProcessPool) -> Packed:
        """Make the store if all jobs are done, by whatever process. List bad items."""
        packing, journal, num_jobs = self.packing, self.journal, self.plan.num_jobs
        if journal.begun() is None:  # another part made the store while we waited
            return Packed(None)
        done = [journal.done(number) for number in range(num_jobs)]
        results = [result for result in done if result is not None]
        resumed = self.before.resumed
        if len(results) < num_jobs:
            return Packed(None, waiting=num_jobs - len(results), resumed=resumed)
        counts = np.sum([job.class_counts for job in results], axis=0, dtype=np.int64).tolist()
        first_key = next((job.first_key for job in results if job.num_records), None)
        num_records = 0
        for job in results:
            follows = first_key is not None and job.first_key == first_key + num_records
            if job.num_records and not follows:
                first_key = None
            num_records += job.num_records
        manifest = replace(
            self.manifest, num_records=num_records, class_counts=counts, first_key=first_key
        )
        self.before = PackProgress("joining", num_records, resumed, 0, 0, 0)
        splits: list[packings.PackedSplit] = []
        if not num_records:
            pass
        elif packing.split is not None:
            tasks = split_tasks(packing.split, manifest, results, journal)
            self._do(workers, tasks.values())
            # After a kill in between, the same command joins all again: the jobs' files stay.
            for name, task in tasks.items():
                path = packing.paths[name]
                durable.move(task.target, Path(path))
                splits.append(packings.PackedSplit(name, path, task.manifest.num_records))
        elif not packing.one_file:
            _put_folder(manifest, results, journal, self.path)
        elif packing.make_part is not None or len(results) > 1:
            target = journal.folder / f"joined{journal.suffix}"
            self._do(workers, [Joining(manifest, results, target)])
            durable.move(target, self.path)
        else:
            durable.move(journal.file(results[0].number), self.path)
        bad = [item for job in results for item in job.bad]
        listing = list_bad(self.path, bad)
        journal.remove()
        if not num_records:
            what = "its items hold no record"
            if bad:
                what = f"all {len(bad)} items are bad, as {listing} says"
            raise DataError(150, manifest.source, what, "give something to pack")
        num_bytes = sum(size_of(Path(path)) for path in packing.paths.values())
        return Packed(manifest, num_bytes, resumed, bad=bad, splits=splits)

    def _check_space(self, plan: packings.PackPlan, num_jobs: int) -> None:
        copied = 0
        if self.packing.one_file and (plan.num_jobs > 1 or self.packing.split is not None):
            copied = plan.num_items  # the joined file, beside those of the jobs
        needed = int((num_jobs * plan.items_per_job + copied) * plan.item_bytes)
        place = self.path.absolute()
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if needed > free:
            missing = f"{needed - free:,} are missing"
            what = f"packing needs about {needed:,} bytes, {free:,} are free: {missing}"
            fix = "free them, choose another output.path, or store less (pack.encode=jpeg)"
            raise ResourceError(151, str(self.path), what, fix)


def _manifest(packing: Packing) -> Manifest:
    source = packing.source.manifest
    fields, options = source.fields, dict(source.options)
    if packing.prepare is not None:
        fields = packing.prepare.fields(packing.source)
        options.update(packing.prepare.options)
    for name, field in fields.items():
        if field.encoding == "ragged" and 0 in field.shape[1:]:
            rest = list(field.shape[1:])
            what = f"the rows of its first array have the shape {rest}, which holds no value"
            fix = "give rows a size, also in an array without rows, or leave the field out"
            raise DataError(167, f"{source.source}: {name}", what, fix)
    label = fields.get("label")
    what = "there is no field label that could number them"
    are_numbered = False
    if label is not None:
        what = f"the field label is {label.dtype} {list(label.shape)}, not the number of a class"
        are_numbered = np.dtype(label.dtype).kind in "biu"
        are_numbered = are_numbered and label.shape in (*ONE_PER_RECORD, (None,))
    if source.classes and not are_numbered:
        fix = "leave it out, or give a whole number per record as label"
        raise ConfigError(161, f"input.classes = {source.classes[0]}, ...", what, fix)
    if packing.split is not None:
        packing.split.check_fields(fields)
    return replace(source, fields=fields, options=options, class_counts=(), statistics={})


class Joining(NamedTuple):
    """The task to join the files of all jobs, or some of their records, into one store."""

    manifest: Manifest
    results: Sequence[JobResult]
    target: Path
    chosen: Sequence[np.ndarray] | None = None  # of each job: bool [records]; None: all


def split_tasks(
    rule: packings.SplitRule, manifest: Manifest, results: Sequence[JobResult], journal: Journal
) -> dict[str, Joining]:
    """Return the task that makes the store of each split. C244 if a split has no record."""
    hashes: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for job in results:
        if not job.num_records:
            continue
        with closing(open_store(str(journal.file(job.number)))) as store:
            if rule.field is None:
                keys = jobs.keys_of(store, torch.arange(job.num_records))
                texts = rule.texts(keys, store.name(0))
                values = [text.encode(errors="surrogateescape") for text in texts]
            else:
                column = store.column(rule.field)
                if isinstance(column, Ragged):
                    values = [text.tobytes() for text in column.arrays()]
                else:
                    values = [str(number).encode() for number in column.flatten().tolist()]
            hashes.append(packings.hashed(values))
            if rule.by == packings.STRATIFIED:
                labels.append(store.column(LABEL).numpy().reshape(-1))
    splits = rule.assign(np.concatenate(hashes), np.concatenate(labels) if labels else None)
    ends = np.cumsum([job.num_records for job in results])[:-1]
    tasks: dict[str, Joining] = {}
    for number, name in enumerate(rule.shares):
        is_in = splits == number
        words = f"{name} of {rule.words}"
        if rule.by is not None:
            words += f" by {rule.by}"
        own = replace(
            manifest,
            num_records=int(is_in.sum()),
            options={**manifest.options, "split": words},
            first_key=None,  # the keys of a split have gaps
        )
        target = journal.folder / f"joined-{name}{journal.suffix}"
        tasks[name] = Joining(own, results, target, np.split(is_in, ends))
    return tasks


def _do_task(work: jobs.PackWork, task: Any, row: Row, tell: Tell) -> Any:
    try:
        if isinstance(task, Joining):
            return _join(task, work.journal, work.packing.make_writer, row, tell)
        return jobs.do_job(work, task, row, tell)
    except (OSError, ResourceError) as error:
        cause: BaseException | None = error
        if isinstance(error, ResourceError) and error.args[0] == 101:
            cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno is None:
            raise
        fix = "choose another place"
        if cause.errno in durable.FULL:
            fix = "free space: finished jobs are kept, and the same command resumes"
        what = f"cannot write: {os.strerror(cause.errno)}"
        raise ResourceError(101, str(work.journal.folder), what, fix) from error


def _join(
    task: Joining, journal: Journal, make_writer: packings.MakeWriter, row: Row, tell: Tell
) -> None:
    """Stream the jobs' files into one, in order. D155 for a damaged one; its job is done again."""
    if task.target.is_dir():
        shutil.rmtree(task.target)

    def chunks() -> Iterator[Chunk]:
        for place, job in enumerate(task.results):
            indices = torch.arange(job.num_records)
            if task.chosen is not None:
                indices = torch.from_numpy(np.flatnonzero(task.chosen[place]))
            if not len(indices):
                continue
            size = records_at_once(job.num_records, job.size_bytes, job.first_key is not None)
            with closing(open_store(str(journal.file(job.number)))) as store:
                for part in indices.split(size):
                    records = store.read(part)
                    if damaged := store.damaged(part, records):
                        journal.note_of(job.number).unlink(missing_ok=True)
                        what = f"{len(damaged)} records do not match their checksums any more"
                        fix = "the same command packs them again; look at the disk"
                        raise DataError(155, store.name(damaged[0]), what, fix)
                    keys = jobs.keys_of(store, part)
                    if task.manifest.first_key is None:
                        keys = list(keys)
                    yield Chunk(jobs.as_written(records), keys)
                    row[1] += len(part)
                    row[2] += job.num_bytes * len(part) // job.num_records
                    tell()

    jobs.write_file(make_writer, task.target, task.manifest, chunks(), with_statistics=True)


def records_at_once(num_records: int, num_bytes: int, numbered: bool) -> int:
    """Return how many records take some megabytes; ``numbered``: keys are numbers, of few bytes."""
    most, most_bytes = (1 << 15, 2 << 20) if numbered else (4096, 8 << 20)
    return max(1, min(most, most_bytes * num_records // max(1, num_bytes)))


def _put_folder(manifest: Manifest, results: list[JobResult], journal: Journal, path: Path) -> None:
    shards = [
        Shard(
            journal.file(job.number).name, job.num_records, job.size_bytes, job.sha256, job.digest
        )
        for job in results
        if job.num_records
    ]
    crcs = (journal.crcs(job.number) for job in results)
    manifest = replace(manifest, shards=shards, digest=digest(*crcs))
    for name in set(os.listdir(journal.files)) - {shard.name for shard in shards}:
        (journal.files / name).unlink()  # its job was done again, and has no records now
    target = journal.files / MANIFEST
    durable.write_text(target, to_json(manifest) + "\n")
    with closing(open_store(str(journal.files))) as store:
        manifest = replace(manifest, statistics=statistics_of(store))
    durable.write_text(target, to_json(manifest) + "\n")
    durable.move(journal.files, path)


def list_bad(path: Path, bad: Sequence[BadItem]) -> Path:
    """Write ``PATH.bad.jsonl``, a line per bad item, or remove it if no item is bad."""
    listing = path.with_name(f"{path.name}.bad.jsonl")
    if bad:
        lines = [json.dumps(item._asdict()) + "\n" for item in sorted(bad)]
        durable.write_text(listing, "".join(lines))
    else:
        listing.unlink(missing_ok=True)
    return listing


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
