"""Jobs: fixed ranges of items, each of which becomes one file of records.

The input alone decides how many items a job has. Workers, memory and time never do, so that any
number of processes or machines make the same files.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from framework.contracts.records import Chunk, Field, Manifest, RecordInput, Records, RecordWriter
from framework.errors import DataError, ResourceError
from framework.order import spread
from framework.pack.engine.journal import BadItem, JobResult, Journal
from framework.store.channel_statistics import StatisticsSampler
from framework.store.checksum import content_crcs
from framework.system.durable import FULL, uninterrupted

# A job of 64 MiB of records takes some seconds and fits into memory. Jobs cost some milliseconds of
# fsync, which 1 MiB hides. 16 jobs give a few workers about the same to do.
JOB_BYTES = 64 << 20
JOB_ITEMS = 4096
MIN_JOB_BYTES = 1 << 20
MIN_JOBS = 16
STEP_BYTES = 4 << 20  # read, prepared and written at once
STEP_ITEMS = 1024
HELD_BYTES = 2 * JOB_BYTES  # records of a job that are held; larger jobs read their items twice
NUM_SAMPLES = 8

Stamp = tuple[str, int, int]  # an item's name; of a file also its bytes and its last change


class Prepare(Protocol):
    """A change of records on their way, such as ``framework.pack.images.Preparation``."""

    @property
    def options(self) -> Mapping[str, Any]: ...

    def fields(self, source: RecordInput) -> dict[str, Field]: ...

    def __call__(self, chunk: Chunk) -> Chunk: ...


class MakeWriter(Protocol):
    """A writer's class, or a stand-in for it. Picklable if processes are not forked."""

    def __call__(
        self, path: str, *, fields: Mapping[str, Field], num_records: int
    ) -> RecordWriter: ...


@dataclass(frozen=True)
class PackPlan:
    """The cut of the items into jobs. ``step`` items are read at once.

    ``item_bytes`` estimates the bytes of an item's records, from a sample.
    """

    num_items: int
    items_per_job: int
    step: int
    item_bytes: float

    @property
    def num_jobs(self) -> int:
        return -(-self.num_items // self.items_per_job)

    def span(self, number: int) -> tuple[int, int]:
        """Return the first item of job ``number``, and the item after its last."""
        start = number * self.items_per_job
        return start, min(start + self.items_per_job, self.num_items)


@dataclass(frozen=True)
class PackWork:
    """Everything that a process needs to do a job. ``manifest``: of the prepared records."""

    source: RecordInput
    prepare: Prepare | None
    manifest: Manifest
    make_writer: MakeWriter
    journal: Journal
    plan: PackPlan
    skip: bool


class Job(NamedTuple):
    """Job ``number`` without the bad items ``excluded``."""

    number: int
    excluded: tuple[BadItem, ...] = ()


class Increment(NamedTuple):
    """Progress since the last report; negative if work was lost. ``num_bytes``: of records."""

    items: int
    records: int = 0
    num_bytes: int = 0

    def plus(self, other: "Increment") -> "Increment":
        return Increment(*map(sum, zip(self, other, strict=True)))

    def undone(self) -> "Increment":
        return Increment(-self.items, -self.records, -self.num_bytes)


ReportIncrement = Callable[[Increment], None]


class DiskFull(ResourceError):
    """R101 for missing space."""


def make_plan(source: RecordInput, prepare: Prepare | None) -> PackPlan:
    """Plan the jobs from a few evenly spread items. Bad items are left to their jobs."""
    num_items = source.manifest.num_records
    sizes: list[int] = []
    for item in spread(num_items, min(NUM_SAMPLES, num_items)).tolist():
        with suppress(DataError):
            sizes.append(chunk_bytes(prepared(source, prepare, item, item + 1)))
    size = max(1.0, sum(sizes) / max(1, len(sizes)))
    most = max(1, min(JOB_ITEMS, int(JOB_BYTES / size)))
    per_job = min(most, max(int(MIN_JOB_BYTES / size), -(-num_items // MIN_JOBS), 1))
    return PackPlan(num_items, per_job, max(1, min(STEP_ITEMS, int(STEP_BYTES / size))), size)


def prepared(source: RecordInput, prepare: Prepare | None, start: int, stop: int) -> Chunk:
    """Return the records of items ``start``..``stop`` as they are stored."""
    chunk = source.read(start, stop)
    if prepare is None or not chunk.keys:
        return chunk
    return prepare(chunk)


def chunk_bytes(chunk: Chunk) -> int:
    return sum(
        v.nbytes if isinstance(v, np.ndarray) else sum(map(len, v)) for v in chunk.records.values()
    )


def do_job(work: PackWork, job: Job, report: ReportIncrement) -> JobResult:
    """Read, prepare and publish a job's records, then note the job as done.

    Items are usually files, which may change meanwhile. A job whose items change is read again,
    once. Items that change again are bad.

    Raises:
        DataError: For a bad item, unless bad items are left out.
    """
    start, stop = work.plan.span(job.number)
    before: list[Stamp] = []
    changed: list[int] = []
    for _ in range(2):
        before = stamps(work.source, start, stop)
        result = _write(work, job, before, report)
        after = stamps(work.source, start, stop)
        changed = [start + n for n, stamp in enumerate(after) if stamp != before[n]]
        if not changed:
            work.journal.note(result)
            return result
        report(Increment(start - stop, -result.num_records, -result.num_bytes))
    bad: list[BadItem] = []
    for item in changed:
        name = work.source.name(item)
        error = DataError(153, name, "changes while it is packed", "wait until it is whole")
        bad.append(_bad_item(work, item, error))
    result = _write(work, Job(job.number, (*job.excluded, *bad)), before, report)
    work.journal.note(result)
    return result


def stamps(source: RecordInput, start: int, stop: int) -> list[Stamp]:
    """Return a stamp per item, which changes if the item is a file that changes."""
    return [_stamp(source.name(item)) for item in range(start, stop)]


def _stamp(name: str) -> Stamp:
    try:
        status = os.stat(name)
    except (OSError, ValueError):
        return name, 0, 0
    return name, status.st_size, status.st_mtime_ns


def stamp_of(items: list[Stamp]) -> str:
    return hashlib.sha256(repr(items).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(work: PackWork, job: Job, items: list[Stamp], report: ReportIncrement) -> JobResult:
    """Write a job's file. Records that do not fit into memory are read a second time."""
    bad: list[BadItem] = []
    held: list[Chunk] | None = []
    total = Increment(0)
    for num_items, chunk in _read(work, job, bad):
        done = Increment(num_items, len(chunk.keys), chunk_bytes(chunk))
        total = total.plus(done)
        if total.num_bytes > HELD_BYTES:
            held = None
        elif held is not None:
            held.append(chunk)
        report(done)
    num_records = total.records
    path = work.journal.file(job.number)
    if path.is_dir():  # an old store on its way out: a kill came while the new one took its place
        shutil.rmtree(path)
    counts = np.zeros(len(work.manifest.classes), np.int64)
    crcs: list[int] = []
    size, sha256 = 0, ""
    if num_records:
        chunks = held or (chunk for _, chunk in _read(work, job, []))
        manifest = replace(work.manifest, num_records=num_records)
        is_alone = work.plan.num_jobs == 1  # then its file may become the store
        counts = write_file(work.make_writer, path, manifest, _noted(work, chunks, crcs), is_alone)
        size, sha256 = path.stat().st_size, file_sha256(path)
    words = "".join(f"{crc:08x}" for crc in crcs)
    stamp = stamp_of(items)
    return JobResult(
        job.number, num_records, total.num_bytes, size, sha256, stamp, counts.tolist(), words, bad
    )


def _noted(work: PackWork, chunks: Iterable[Chunk], crcs: list[int]) -> Iterator[Chunk]:
    """Yield the chunks after adding the checksums of their records to ``crcs``."""
    for chunk in chunks:
        if chunk.keys:
            crcs += content_crcs(chunk.records, work.manifest.fields)
            yield chunk


def write_file(
    make_writer: MakeWriter,
    path: Path,
    manifest: Manifest,
    chunks: Iterable[Chunk],
    is_measured: bool,
) -> np.ndarray:
    """Write one file of records, and return the number of records of each class.

    ``is_measured`` says whether the file gets the statistics of its channels.
    """
    sampler = StatisticsSampler(manifest.fields if is_measured else {}, manifest.num_records)
    counts = np.zeros(len(manifest.classes), np.int64)
    writer: RecordWriter | None = None
    try:
        with uninterrupted():
            writer = make_writer(
                str(path), fields=manifest.fields, num_records=manifest.num_records
            )
        for chunk in chunks:
            with uninterrupted():
                writer.write(chunk.records, chunk.keys)
            sampler.pass_by(chunk.records, len(chunk.keys))
            counts += class_counts(chunk, len(counts))
        statistics = sampler.result()
        with uninterrupted():
            writer.close(replace(manifest, class_counts=counts.tolist(), statistics=statistics))
    finally:
        if writer is not None:
            writer.abort()
    return counts


def disk_error(error: Exception, path: str) -> Exception:
    """Return a writer's error as one line.

    Missing space is DiskFull, other answers of the disk are R101, and other errors stay.
    """
    cause = error if isinstance(error, OSError) else error.__cause__
    is_other = isinstance(error, ResourceError) and error.args[0] != 101
    if isinstance(error, DiskFull) or is_other:
        return error
    if not isinstance(cause, OSError) or cause.errno is None:
        return error
    what = f"cannot write: {os.strerror(cause.errno)}"
    if cause.errno in FULL:
        return DiskFull(101, path, what, "free space or choose another place")
    return ResourceError(101, path, what, "choose another place")


def class_counts(chunk: Chunk, num_classes: int) -> np.ndarray:
    """Return the records of each class. DataError D152 for a label that is not a class."""
    if not num_classes:
        return np.zeros(0, np.int64)
    labels = np.asarray(chunk.records["label"]).astype(np.int64)
    is_wrong = (labels < 0) | (labels >= num_classes)
    if is_wrong.any():
        first = int(is_wrong.argmax())
        what = f"label {labels[first]}, there are {num_classes} classes"
        raise DataError(152, chunk.keys[first], what, "correct the labels")
    return np.bincount(labels, minlength=num_classes)


def _read(work: PackWork, job: Job, bad: list[BadItem]) -> Iterator[tuple[int, Chunk]]:
    """Yield the number of items of each step, and their records. Add bad items to ``bad``."""
    first, last = work.plan.span(job.number)
    excluded = {item.item: item for item in job.excluded}
    for start in range(first, last, work.plan.step):
        stop = min(start + work.plan.step, last)
        yield stop - start, _read_step(work, start, stop, excluded, bad)


def _read_step(
    work: PackWork, start: int, stop: int, excluded: Mapping[int, BadItem], bad: list[BadItem]
) -> Chunk:
    if not any(start <= item < stop for item in excluded):
        with suppress(DataError):  # read item by item to find the bad ones
            return _checked(work, start, stop)
    chunks: list[Chunk] = []
    for item in range(start, stop):
        if item in excluded:
            bad.append(excluded[item])
            continue
        with suppress(DataError):
            chunks.append(_checked(work, item, item + 1))
            continue
        try:  # a second chance: its file may have been half written
            chunks.append(_checked(work, item, item + 1))
        except DataError as error:
            bad.append(_bad_item(work, item, error))
    return joined([chunk for chunk in chunks if chunk.keys], work.manifest.fields)


def _bad_item(work: PackWork, item: int, error: DataError) -> BadItem:
    """Return an item for the list of bad items, or raise ``error`` if none may be left out."""
    if not work.skip:
        raise error
    reason = " ".join(str(error.args[2]).split())
    return BadItem(item, work.source.name(item), f"{error.letter}{error.args[0]}", reason)


def _checked(work: PackWork, start: int, stop: int) -> Chunk:
    """Return prepared records after comparing them with the manifest. DataError D151."""
    chunk = prepared(work.source, work.prepare, start, stop)
    for name, field in work.manifest.fields.items():
        if not chunk.keys or field.encoding != "raw":
            continue
        array: np.ndarray = chunk.records[name]
        given = f"{array.dtype} {array.shape[1:]}"
        wanted = f"{np.dtype(field.dtype)} {tuple(field.shape)}"
        if given != wanted:
            what = f"{name} is {given}, the first record's {wanted}"
            fix = "give records of one shape; pack.size=[height,width] scales images to one"
            raise DataError(151, chunk.keys[0], what, fix)
    return chunk


def joined(chunks: Sequence[Chunk], fields: Mapping[str, Field]) -> Chunk:
    """Return the records of all chunks as one."""
    records: Records = {}
    for name, field in fields.items():
        parts = [chunk.records[name] for chunk in chunks]
        records[name] = [value for part in parts for value in part]
        if field.encoding == "raw":
            empty = np.empty((0, *(size or 0 for size in field.shape)), field.dtype)
            records[name] = np.concatenate(parts) if parts else empty
    return Chunk(records, [key for chunk in chunks for key in chunk.keys])


def probe(work: PackWork, start: int, stop: int, report: Callable[[int], None]) -> None:
    """Read and prepare items one by one, and report each first, to find the one that kills."""
    for item in range(start, stop):
        report(item)
        with suppress(DataError):  # bad, but not deadly
            prepared(work.source, work.prepare, item, item + 1)
