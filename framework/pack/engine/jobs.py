"""A job: a fixed range of items that becomes a file of records. What it gives depends on nothing but its items.

How many items a job has is decided by the input alone, never by workers, memory or time, so that any number of processes or machines
make the same files.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from framework.contracts.records import Chunk, Field, Manifest, RecordInput, Records, RecordWriter
from framework.errors import DataError, ResourceError
from framework.order import spread
from framework.pack.engine.journal import Bad, Done, Journal
from framework.store.channel_statistics import StatisticsSampler
from framework.store.checksum import content_crcs
from framework.system.durable import FULL, uninterrupted

JOB_BYTES = 64 << 20  # of records: some seconds of work, and little enough to hold in memory
JOB_ITEMS = 4096
MIN_JOB_BYTES = 1 << 20  # a job costs some milliseconds of fsync, which this hides
MIN_JOBS = 16  # so that a few workers have about the same to do
STEP_BYTES, STEP_ITEMS = 4 << 20, 1024  # read, prepared and written at once
HELD_BYTES = (
    2 * JOB_BYTES
)  # of a job's records in memory; where the sample misjudged them, the items are read twice instead
NUM_SAMPLES = 8

Stamp = tuple[str, int, int]  # an item's name; bytes and time of the last change where it is a file


class Prepare(Protocol):
    """What is done to records on their way: ``framework.pack.images.Preparation``."""

    @property
    def options(self) -> Mapping[str, Any]: ...

    def fields(self, source: RecordInput) -> dict[str, Field]: ...

    def __call__(self, chunk: Chunk) -> Chunk: ...


class MakeWriter(Protocol):
    """A writer's class, or what stands for it; picklable where processes are not forked."""

    def __call__(
        self, path: str, *, fields: Mapping[str, Field], num_records: int
    ) -> RecordWriter: ...


@dataclass(frozen=True)
class PackPlan:
    """How items are cut into jobs. ``record_bytes``: of one item's records, by a sample; ``step``: items read at once."""

    num_items: int
    items_per_job: int
    step: int
    item_bytes: float

    @property
    def num_jobs(self) -> int:
        return -(-self.num_items // self.items_per_job)

    def span(self, number: int) -> tuple[int, int]:
        """First item of job ``number``, and the one after its last."""
        start = number * self.items_per_job
        return start, min(start + self.items_per_job, self.num_items)


@dataclass(frozen=True)
class PackWork:
    """All that a process needs to do a job. ``manifest``: of the prepared records."""

    source: RecordInput
    prepare: Prepare | None
    manifest: Manifest
    make_writer: MakeWriter
    journal: Journal
    plan: PackPlan
    skip: bool


class Job(NamedTuple):
    """Job ``number`` without the items ``excluded``, which cannot be read."""

    number: int
    excluded: tuple[Bad, ...] = ()


class Moved(NamedTuple):
    """Progress: so many more items, records and bytes of records."""

    items: int
    records: int = 0
    num_bytes: int = 0


class DiskFull(ResourceError):
    """R101 where it is room that is missing. ``args`` are the same, so that it pickles."""


def make_plan(source: RecordInput, prepare: Prepare | None) -> PackPlan:
    """Decided from a few items, evenly spread. One that is bad tells nothing here; its job will."""
    num_items = source.manifest.num_records
    sizes: list[int] = []
    for item in spread(num_items, min(NUM_SAMPLES, num_items)).tolist():
        try:
            sizes.append(chunk_bytes(prepared(source, prepare, item, item + 1)))
        except DataError:
            continue
    size = max(1.0, sum(sizes) / max(1, len(sizes)))
    fits = max(1, min(JOB_ITEMS, int(JOB_BYTES / size)))
    per_job = min(fits, max(int(MIN_JOB_BYTES / size), -(-num_items // MIN_JOBS), 1))
    return PackPlan(num_items, per_job, max(1, min(STEP_ITEMS, int(STEP_BYTES / size))), size)


def prepared(source: RecordInput, prepare: Prepare | None, start: int, stop: int) -> Chunk:
    """The records of items ``start``..``stop``, as they will be stored."""
    chunk = source.read(start, stop)
    return chunk if prepare is None or not chunk.keys else prepare(chunk)


def chunk_bytes(chunk: Chunk) -> int:
    """Bytes of all its records."""
    return sum(
        v.nbytes if isinstance(v, np.ndarray) else sum(map(len, v)) for v in chunk.records.values()
    )


def do_job(work: PackWork, job: Job, say: Any) -> Done:
    """Read, prepare and publish a job's records, then note it as done. DataError names a bad item, unless it may be skipped.

    Items are files, usually, which may change meanwhile: such a job is read again, once; items that still change are bad.
    """
    start, stop = work.plan.span(job.number)
    before = stamps(work.source, start, stop)
    done, changed = _write(work, job, say, before), _changed(work.source, start, before)
    if changed:
        say(Moved(start - stop, -done.num_records, -done.num_bytes))
        before = stamps(work.source, start, stop)
        done, changed = _write(work, job, say, before), _changed(work.source, start, before)
    if changed:
        say(Moved(start - stop, -done.num_records, -done.num_bytes))
        bad = [_told(work, item, _changes(work.source.name(item))) for item in changed]
        done = _write(work, Job(job.number, (*job.excluded, *bad)), say, before)
    work.journal.note(done)
    return done


def _changed(source: RecordInput, start: int, before: list[Stamp]) -> list[int]:
    """The items that are not what they were."""
    after = stamps(source, start, start + len(before))
    return [start + n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def _changes(name: str) -> DataError:
    return DataError(153, name, "changes while it is packed", "wait until it is whole")


def stamps(source: RecordInput, start: int, stop: int) -> list[Stamp]:
    """What tells that an item is not what it was: its size and time, where its name is that of a file."""
    found: list[Stamp] = []
    for item in range(start, stop):
        name = source.name(item)
        try:
            stat = os.stat(name)
            found.append((name, stat.st_size, stat.st_mtime_ns))
        except (OSError, ValueError):
            found.append((name, 0, 0))
    return found


def stamp_of(found: list[Stamp]) -> str:
    """One word for what items are."""
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _write(work: PackWork, job: Job, say: Any, found: list[Stamp]) -> Done:
    """One pass to read, holding the records where they fit; a second one to read again where they do not; then the file."""
    bad: list[Bad] = []
    held: list[Chunk] | None = []
    num_records = num_bytes = 0
    for num_items, chunk in _read(work, job, bad):
        num_records, num_bytes = num_records + len(chunk.keys), num_bytes + chunk_bytes(chunk)
        held = None if held is None or num_bytes > HELD_BYTES else [*held, chunk]
        say(Moved(num_items, len(chunk.keys), chunk_bytes(chunk)))
    chunks = iter(held) if held is not None else (chunk for _, chunk in _read(work, job, []))
    path = work.journal.file(job.number)
    if (
        path.is_dir()
    ):  # an old store on its way out, when this was killed while it put a new one in its place
        shutil.rmtree(path)
    counts, crcs = (
        _publish(work, path, chunks, num_records)
        if num_records
        else (np.zeros(len(work.manifest.classes), int), [])
    )
    size, sha256 = (path.stat().st_size, file_sha256(path)) if num_records else (0, "")
    words = "".join(f"{crc:08x}" for crc in crcs)
    return Done(
        job.number,
        num_records,
        num_bytes,
        size,
        sha256,
        stamp_of(found),
        counts.tolist(),
        words,
        bad,
    )


def _publish(
    work: PackWork, path: Path, chunks: Iterator[Chunk], num_records: int
) -> tuple[np.ndarray, list[int]]:
    """The records' file. Returns the number of records of each class, and the records' checksums."""
    counts, crcs = np.zeros(len(work.manifest.classes), np.int64), []
    writer: RecordWriter | None = None
    alone = work.plan.num_jobs == 1  # then its file may be the whole store
    sampler = StatisticsSampler(work.manifest.fields if alone else {}, num_records)
    try:
        with uninterrupted():
            writer = work.make_writer(
                str(path), fields=work.manifest.fields, num_records=num_records
            )
        for chunk in chunks:
            if not chunk.keys:
                continue
            with uninterrupted():
                writer.write(chunk.records, chunk.keys)
            sampler.pass_by(chunk.records, len(chunk.keys))
            counts += class_counts(chunk, len(counts))
            crcs += content_crcs(chunk.records, work.manifest.fields)
        manifest = replace(work.manifest, class_counts=counts.tolist(), statistics=sampler.result())
        with uninterrupted():
            writer.close(replace(manifest, num_records=num_records))
    except (OSError, ResourceError) as error:
        raise said_of_disk(error, str(path)) from error
    finally:
        if writer is not None:
            writer.abort()
    return counts, crcs


def said_of_disk(error: Exception, path: str) -> Exception:
    """A writer's error as one line: DiskFull where room is missing, R101 for what else the disk says, others as they are."""
    if isinstance(error, DiskFull):
        return error
    cause = error if isinstance(error, OSError) else error.__cause__
    if (
        not isinstance(cause, OSError)
        or cause.errno is None
        or (isinstance(error, ResourceError) and error.args[0] != 101)
    ):
        return error
    words = os.strerror(cause.errno)
    if cause.errno in FULL:
        return DiskFull(101, path, f"cannot write: {words}", "free space or choose another place")
    return ResourceError(101, path, f"cannot write: {words}", "choose another place")


def class_counts(chunk: Chunk, num_classes: int) -> np.ndarray:
    """Records of each class. DataError D152 for a label that is no class's number."""
    if not num_classes:
        return np.zeros(0, np.int64)
    labels = np.asarray(chunk.records["label"]).astype(np.int64)
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        where = int(wrong.argmax())
        raise DataError(
            152,
            chunk.keys[where],
            f"label {labels[where]}, there are {num_classes} classes",
            "correct the labels",
        )
    return np.bincount(labels, minlength=num_classes)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(work: PackWork, job: Job, bad: list[Bad]) -> Iterator[tuple[int, Chunk]]:
    """(items, their records), a step at a time; what is left out is added to ``bad``."""
    first, last = work.plan.span(job.number)
    excluded = {item.item: item for item in job.excluded}
    for start in range(first, last, work.plan.step):
        stop = min(start + work.plan.step, last)
        yield stop - start, _read_step(work, start, stop, excluded, bad)


def _read_step(
    work: PackWork, start: int, stop: int, excluded: Mapping[int, Bad], bad: list[Bad]
) -> Chunk:
    if not any(start <= item < stop for item in excluded):
        try:
            return _checked(work, start, stop)
        except DataError:
            pass  # by item, to know which
    chunks: list[Chunk] = []
    for item in range(start, stop):
        if item in excluded:
            bad.append(excluded[item])
            continue
        try:
            chunks.append(_read_twice(work, item))
        except DataError as error:
            bad.append(_told(work, item, error))
    return _joined(chunks, work.manifest.fields)


def _read_twice(work: PackWork, item: int) -> Chunk:
    """A bad item gets a second chance: its file may have been in the middle of being written."""
    try:
        return _checked(work, item, item + 1)
    except DataError:
        return _checked(work, item, item + 1)


def _told(work: PackWork, item: int, error: DataError) -> Bad:
    """``error`` as a line of the list of bad items, or raised where none may be skipped."""
    if not work.skip:
        raise error
    return Bad(
        item,
        work.source.name(item),
        f"{error.letter}{error.args[0]}",
        " ".join(str(error.args[2]).split()),
    )


def _checked(work: PackWork, start: int, stop: int) -> Chunk:
    """The prepared records, which must be what the manifest says. DataError D151."""
    chunk = prepared(work.source, work.prepare, start, stop)
    for name, field in work.manifest.fields.items():
        if not chunk.keys or field.encoding != "raw":
            continue
        array: np.ndarray = chunk.records[name]
        if array.shape[1:] != tuple(field.shape) or array.dtype != np.dtype(field.dtype):
            what = f"{name} is {array.dtype} {array.shape[1:]}, the first record's {field.dtype} {tuple(field.shape)}"
            raise DataError(
                151,
                chunk.keys[0],
                what,
                "give records of one shape; pack.size=[height,width] scales images to one",
            )
    return chunk


def _joined(chunks: list[Chunk], fields: Mapping[str, Field]) -> Chunk:
    full = [chunk for chunk in chunks if chunk.keys]
    records: Records = {}
    for name, field in fields.items():
        parts = [chunk.records[name] for chunk in full]
        if field.encoding == "raw" and parts:
            records[name] = np.concatenate(parts)
        else:
            records[name] = [value for part in parts for value in part]
    return Chunk(records, [key for chunk in full for key in chunk.keys])


def probe(work: PackWork, start: int, stop: int, say: Any) -> None:
    """Read and prepare items one by one, saying which before each: the one whose process dies is found by it."""
    for item in range(start, stop):
        say(item)
        try:
            prepared(work.source, work.prepare, item, item + 1)
        except DataError:
            continue  # bad, but not deadly
