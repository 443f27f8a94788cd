"""Jobs: fixed ranges of items, each of which becomes one file of records.

An item is what an input reads at once, such as an image file. It becomes zero or more records.
The input and the preparation alone decide how many items a job has. Workers, memory and time never
do, so that any number of processes or machines make the same files.
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

from framework.contracts.class_labels import IGNORE_INDEX
from framework.contracts.records import (
    Chunk,
    Field,
    Manifest,
    NumberKeys,
    RecordInput,
    Records,
    RecordWriter,
    item_files_of,
    joined_keys,
    range_files_of,
)
from framework.errors import DataError, ResourceError
from framework.order.batches import spread
from framework.pack.engine.journal import BadItem, JobResult, Journal
from framework.pack.item_error import item_error
from framework.pack.split import SplitRule
from framework.store.channel_statistics import StatisticsSampler
from framework.store.checksum import content_crcs, digest
from framework.store.read_files import DiskReads, ask_item_files
from framework.system.durable import FULL, uninterrupted

# A job of 64 MiB of records takes some seconds and fits into memory.
MAX_JOB_BYTES = 64 << 20
MAX_JOB_ITEMS = 4096
# Each job costs some milliseconds of fsync. That is little compared with packing 1 MiB.
MIN_JOB_BYTES = 1 << 20
# An input that is large enough gives at least about this many jobs, so that workers share evenly.
TARGET_JOBS = 16
# A block is a run of items of one job that are read, prepared and written at once.
BLOCK_BYTES = 4 << 20
BLOCK_ITEMS = 1024
# The same of an input that reads arrays: more records at once, and less memory.
ARRAY_JOB_BYTES = 8 << 20
ARRAY_BLOCK_BYTES = 1 << 20
ARRAY_BLOCK_ITEMS = 1 << 17
# A job with at most so many bytes of records keeps them in memory until they are written. The items
# of a larger job are read twice: to count the records, and to write them.
HELD_BYTES = 2 * MAX_JOB_BYTES
NUM_SIZE_SAMPLES = 8  # items that are read to estimate the size of all

_disk = DiskReads()


# The name of an item, and path, bytes and time of change of each file that it is read from.
ItemStamp = tuple[str, tuple[tuple[str, int, int], ...]]


class Prepare(Protocol):
    """A change of records between reading and writing.

    An example is ``framework.pack.images.Preparation``.
    """

    @property
    def options(self) -> Mapping[str, Any]: ...

    def fields(self, source: RecordInput) -> dict[str, Field]: ...

    def __call__(self, chunk: Chunk) -> Chunk: ...


class MakeWriter(Protocol):
    """A writer's class, or a function with the same arguments.

    It must be picklable unless processes are forked.
    """

    def __call__(
        self, path: str, *, fields: Mapping[str, Field], num_records: int
    ) -> RecordWriter: ...


@dataclass(frozen=True)
class PackPlan:
    """How items are divided into jobs.

    Attributes:
        num_items: Items of the input.
        items_per_job: Items of every job but the last, which may have fewer.
        items_per_block: Items that are read at once.
        item_bytes: An estimate, from a sample, of the bytes of an item's records.
        reads_arrays: Whether each item is a record, and a range of them is read at once.
    """

    num_items: int
    items_per_job: int
    items_per_block: int
    item_bytes: float
    reads_arrays: bool = False

    @property
    def num_jobs(self) -> int:
        return -(-self.num_items // self.items_per_job)

    def item_range(self, number: int) -> tuple[int, int]:
        """Return the first item of job ``number``, and the item after its last."""
        start = number * self.items_per_job
        return start, min(start + self.items_per_job, self.num_items)


@dataclass(frozen=True)
class PackWork:
    """Everything that a process needs to do a job.

    Attributes:
        source: Gives the items.
        prepare: Changes their records; None: they are written as they were read.
        manifest: Describes the prepared records.
        make_writer: Opens a job's file.
        journal: Notes the jobs that are done.
        plan: Divides the items into jobs.
        skip_bad: Whether bad items are left out. Otherwise the first one raises its error.
        split: Divides the records later, perhaps by their keys.
    """

    source: RecordInput
    prepare: Prepare | None
    manifest: Manifest
    make_writer: MakeWriter
    journal: Journal
    plan: PackPlan
    skip_bad: bool
    split: SplitRule | None = None


class Job(NamedTuple):
    """Job ``number`` without the bad items ``excluded``."""

    number: int
    excluded: tuple[BadItem, ...] = ()


class Increment(NamedTuple):
    """Progress since the last report. Numbers are negative if work must be done again.

    Attributes:
        items: Items that were read and prepared.
        records: Records that they gave.
        num_bytes: Bytes of these records.
    """

    items: int
    records: int = 0
    num_bytes: int = 0

    def plus(self, other: "Increment") -> "Increment":
        return Increment(*map(sum, zip(self, other, strict=True)))

    def negated(self) -> "Increment":
        return Increment(-self.items, -self.records, -self.num_bytes)


ReportIncrement = Callable[[Increment], None]


class DiskFull(ResourceError):
    """R101 because the disk is full."""


def make_plan(source: RecordInput, prepare: Prepare | None) -> PackPlan:
    """Plan the jobs from the size of a few items."""
    num_items = source.manifest.num_records
    item_bytes = _mean_item_bytes(source, prepare)
    per_job = max(int(MIN_JOB_BYTES / item_bytes), -(-num_items // TARGET_JOBS))
    reads_arrays = range_files_of(source, 0, num_items) is not None
    if reads_arrays:
        per_job = min(per_job, int(ARRAY_JOB_BYTES / item_bytes))
        per_block = min(ARRAY_BLOCK_ITEMS, int(ARRAY_BLOCK_BYTES / item_bytes))
    else:
        per_job = min(per_job, MAX_JOB_ITEMS, int(MAX_JOB_BYTES / item_bytes))
        per_block = min(BLOCK_ITEMS, int(BLOCK_BYTES / item_bytes))
    return PackPlan(num_items, max(1, per_job), max(1, per_block), item_bytes, reads_arrays)


def _mean_item_bytes(source: RecordInput, prepare: Prepare | None) -> float:
    """Return the mean size of a few evenly spread items, at least 1.

    A bad item is left out of the sample. Its job reports it.
    """
    num_items = source.manifest.num_records
    sizes: list[int] = []
    for item in spread(num_items, min(NUM_SIZE_SAMPLES, num_items)).tolist():
        with suppress(DataError):
            sizes.append(chunk_bytes(prepared(source, prepare, item, item + 1)))
    return max(1.0, sum(sizes) / max(1, len(sizes)))


def prepared(source: RecordInput, prepare: Prepare | None, start: int, stop: int) -> Chunk:
    """Read items ``start`` to ``stop``, and return their records after the preparation.

    If a preparation of a single record fails, its error has the name of the item.
    """
    chunk = source.read(start, stop)
    if prepare is None or not chunk.keys:
        return chunk
    try:
        return prepare(chunk)
    except DataError as error:
        if len(chunk.keys) > 1:
            raise
        raise item_error(error, source, start, chunk.keys[0]) from error


def chunk_bytes(chunk: Chunk) -> int:
    return sum(map(_num_bytes, chunk.records.values()))


def _num_bytes(values: Any) -> int:
    """Return the bytes of an array, or of a list of arrays or byte strings."""
    if isinstance(values, np.ndarray):
        return values.nbytes
    return sum(memoryview(value).nbytes for value in values)


def do_job(work: PackWork, job: Job, report: ReportIncrement) -> JobResult:
    """Read, prepare and publish a job's records, then note the job as done.

    If the files of an item change while its job is done, the job is done once more. Items that
    change during that attempt are bad.

    Raises:
        DataError: For a bad item, unless bad items are left out. D153 for one that changes.
    """
    start, stop = work.plan.item_range(job.number)
    before: list[ItemStamp] = []
    changed: list[int] = []
    for _ in range(2):
        before = stamps(work.source, start, stop)
        result, crcs = _write(work, job, before, report)
        after = stamps(work.source, start, stop)
        changed = [start + n for n, stamp in enumerate(after) if stamp != before[n]]
        if not changed:
            work.journal.note(result, crcs)
            return result
        # The items are read again, so what was reported so far does not count.
        report(Increment(start - stop, -result.num_records, -result.num_bytes))
    if work.plan.reads_arrays:  # one stamp for all items
        changed = list(range(start, stop))
    bad: list[BadItem] = []
    for item in changed:
        name = work.source.name(item)
        fix = "wait until the file is complete, then pack again"
        error = DataError(153, name, "changes while it is packed", fix)
        bad.append(_bad_item(work, item, error))
    result, crcs = _write(work, Job(job.number, (*job.excluded, *bad)), before, report)
    work.journal.note(result, crcs)
    return result


def stamps(source: RecordInput, start: int, stop: int) -> list[ItemStamp]:
    """Return a stamp per item, which changes if a file changes that the item is read from.

    Items that are read at once have one stamp.
    """
    files = range_files_of(source, start, stop)
    if files is not None:
        name = f"{source.name(start)} and {stop - start - 1} more"
        return [(name, tuple(map(_file_stamp, files)))]
    return [
        (source.name(item), tuple(map(_file_stamp, item_files_of(source, item))))
        for item in range(start, stop)
    ]


def _file_stamp(path: str) -> tuple[str, int, int]:
    """Return the state of a file. Size and time are 0 if it cannot be found."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return path, 0, 0
    return path, status.st_size, status.st_mtime_ns


def hash_of(items: Sequence[ItemStamp]) -> str:
    """Return the stamps of a job's items as one SHA-256, in hexadecimal."""
    return hashlib.sha256(repr(items).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _WrittenJob(NamedTuple):
    """A written job, and the checksums of its records: uint32 [num_records]."""

    result: JobResult
    crcs: np.ndarray


def _write(
    work: PackWork, job: Job, items: list[ItemStamp], report: ReportIncrement
) -> _WrittenJob:
    """Write a job's file. A job of more than ``HELD_BYTES`` reads all of its items twice."""
    bad: list[BadItem] = []
    held: list[Chunk] | None = []
    total = Increment(0)
    keys: NumberKeys | None = None  # as long as they are consecutive numbers
    for num_items, chunk in _read(work, job, bad):
        done = Increment(num_items, len(chunk.keys), chunk_bytes(chunk))
        if chunk.keys and (keys or not total.records):
            keys = _numbers([keys, chunk.keys] if keys else [chunk.keys])
        total = total.plus(done)
        if total.num_bytes > HELD_BYTES:
            held = None
        elif held is not None:
            held.append(chunk)
        report(done)
    num_records = total.records
    path = work.journal.file(job.number)
    if path.is_dir():
        # A finished file and the older store that it replaces change places. A kill right after
        # that leaves the older store here.
        shutil.rmtree(path)
    counts = np.zeros(len(work.manifest.classes), np.int64)
    crcs: list[np.ndarray] = [np.empty(0, np.uint32)]
    size, sha256 = 0, ""
    if num_records:
        # A second read finds the same bad items, which ``bad`` has already.
        chunks = held or (chunk for _, chunk in _read(work, job, []))
        if keys is None:
            chunks = map(with_listed_keys, chunks)
        manifest = replace(work.manifest, num_records=num_records)
        # The file of an only job may become the store, which has statistics.
        is_only_job = work.plan.num_jobs == 1
        noted = _note_crcs(work, chunks, crcs)
        counts = write_file(work.make_writer, path, manifest, noted, is_only_job)
        size, sha256 = path.stat().st_size, file_sha256(path)
    all_crcs = np.concatenate(crcs)
    result = JobResult(
        job.number,
        num_records,
        total.num_bytes,
        size,
        sha256,
        hash_of(items),
        counts.tolist(),
        digest(all_crcs),
        keys.start if keys else None,
        bad,
    )
    return _WrittenJob(result, all_crcs)


def _numbers(parts: Sequence[Sequence[str]]) -> NumberKeys | None:
    """Return the keys of all parts if they are consecutive numbers."""
    keys = joined_keys(parts)
    return keys if isinstance(keys, NumberKeys) else None


def with_listed_keys(chunk: Chunk) -> Chunk:
    """Return the chunk with a string for each key, which a file then stores."""
    return chunk._replace(keys=list(chunk.keys))


def _note_crcs(work: PackWork, chunks: Iterable[Chunk], crcs: list[np.ndarray]) -> Iterator[Chunk]:
    """Yield the chunks that hold records, and append the records' checksums to ``crcs``."""
    for chunk in chunks:
        if chunk.keys:
            crcs.append(content_crcs(chunk.records, work.manifest.fields))
            yield chunk


def write_file(
    make_writer: MakeWriter,
    path: Path,
    manifest: Manifest,
    chunks: Iterable[Chunk],
    with_statistics: bool,
) -> np.ndarray:
    """Write one file of records, and return the number of records of each class.

    A signal waits until the writer returns, since its library may be left broken by an exception.
    ``with_statistics`` says whether the manifest gets the mean and deviation of each channel.
    """
    sampler = StatisticsSampler(manifest.fields if with_statistics else {}, manifest.num_records)
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
    """Return the error to raise for a writer's error.

    A full disk gives DiskFull, and any other error of the operating system R101. Errors that the
    operating system did not cause are returned unchanged.
    """
    if isinstance(error, ResourceError):
        number, *_ = error.args
        if isinstance(error, DiskFull) or number != 101:
            return error
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError) or cause.errno is None:
        return error
    what = f"cannot write: {os.strerror(cause.errno)}"
    if cause.errno in FULL:
        return DiskFull(101, path, what, "free space or choose another place")
    return ResourceError(101, path, what, "choose another place")


def class_counts(chunk: Chunk, num_classes: int) -> np.ndarray:
    """Count the records of each class, or the rows of ragged labels, except ignored labels.

    DataError D152 for a label that is not a class.
    """
    if not num_classes:
        return np.zeros(0, np.int64)
    labels, owners = _flat_labels(chunk.records["label"])
    counted = labels != IGNORE_INDEX
    labels, owners = labels[counted], owners[counted]
    is_wrong = (labels < 0) | (labels >= num_classes)
    if is_wrong.any():
        first = int(is_wrong.argmax())
        what = f"has label {labels[first]}, but classes are numbered from 0 to {num_classes - 1}"
        raise DataError(152, chunk.keys[int(owners[first])], what, "correct the labels")
    return np.bincount(labels, minlength=num_classes)


def _flat_labels(labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return all labels of a chunk, and the place of each label's record: int64 [n] both."""
    owners = np.arange(len(labels))
    if isinstance(labels, list):  # a label per box, for example
        owners = np.repeat(owners, [len(own) for own in labels])
        labels = np.concatenate([np.zeros(0, np.int64), *labels])
    return np.asarray(labels).astype(np.int64).reshape(-1), owners


def _read(work: PackWork, job: Job, bad: list[BadItem]) -> Iterator[tuple[int, Chunk]]:
    """Yield the number of items of each block, and their records. Add bad items to ``bad``."""
    first, last = work.plan.item_range(job.number)
    excluded = {item.item: item for item in job.excluded}
    size = work.plan.items_per_block
    for start in range(first, last, size):
        stop = min(start + size, last)
        # The disk reads the next block while this one is prepared. Nobody asked for the first.
        ahead = range(start if start == first else stop, min(stop + size, last))
        if ahead and _disk.were_made(size):
            ask_item_files(work.source, ahead)
        yield stop - start, _read_block(work, start, stop, excluded, bad)


def _read_block(
    work: PackWork, start: int, stop: int, excluded: Mapping[int, BadItem], bad: list[BadItem]
) -> Chunk:
    """Return the records of a block. If that fails, read item by item to find the bad ones."""
    if not any(start <= item < stop for item in excluded):
        with suppress(DataError):
            return _checked(work, start, stop)
    chunks: list[Chunk] = []
    for item in range(start, stop):
        if item in excluded:
            bad.append(excluded[item])
            continue
        try:
            chunks.append(_read_item(work, item))
        except DataError as error:
            bad.append(_bad_item(work, item, error))
    return joined([chunk for chunk in chunks if chunk.keys], work.manifest.fields)


def _read_item(work: PackWork, item: int) -> Chunk:
    with suppress(DataError):
        return _checked(work, item, item + 1)
    return _checked(work, item, item + 1)  # the file may have been incomplete a moment ago


def _bad_item(work: PackWork, item: int, error: DataError) -> BadItem:
    """Return the entry for an item that is left out. Raise ``error`` if bad items are not."""
    if not work.skip_bad:
        raise error
    reason = " ".join(str(error.args[2]).split())
    return BadItem(item, work.source.name(item), f"{error.letter}{error.args[0]}", reason)


def _checked(work: PackWork, start: int, stop: int) -> Chunk:
    """Return prepared records.

    Raises:
        DataError: D151 if an array is not as the manifest says, D243 for a key without a split.
    """
    chunk = prepared(work.source, work.prepare, start, stop)
    if work.split is not None and work.split.field is None:
        work.split.texts(chunk.keys, work.source.name(start))
    for name, field in work.manifest.fields.items():
        if chunk.keys and field.encoding not in ("image", "frames"):
            _check_arrays(chunk, name, field)
    return chunk


def _check_arrays(chunk: Chunk, name: str, field: Field) -> None:
    arrays: Any = chunk.records[name]
    if field.encoding == "raw":
        arrays = arrays[:1]  # all records of an array have one shape
    for key, array in zip(chunk.keys, arrays, strict=False):
        if array.dtype != field.dtype or not _fits(array.shape, field):
            what = f"{name} is {_form(array.dtype, array.shape)}, but the first record has "
            what += _form(np.dtype(field.dtype), field.shape)
            fix = "give records of one shape; pack.size=[height,width] scales images to one"
            raise DataError(151, key, what, fix)


def _fits(shape: Sequence[int], field: Field) -> bool:
    if field.encoding == "ragged":
        return len(shape) == len(field.shape) and shape[1:] == field.row_shape
    return shape == tuple(field.shape)


def _form(dtype: np.dtype, shape: Sequence[int | None]) -> str:
    return f"{dtype} {tuple(shape)}"


def joined(chunks: Sequence[Chunk], fields: Mapping[str, Field]) -> Chunk:
    """Join the records of all chunks. Without chunks, arrays have 0 records."""
    records: Records = {}
    for name, field in fields.items():
        parts = [chunk.records[name] for chunk in chunks]
        records[name] = [value for part in parts for value in part]
        if field.encoding == "raw":
            empty = np.empty((0, *(size or 0 for size in field.shape)), field.dtype)
            records[name] = np.concatenate(parts) if parts else empty
    return Chunk(records, joined_keys([chunk.keys for chunk in chunks]))


def probe(work: PackWork, start: int, stop: int, report: Callable[[int], None]) -> None:
    """Read and prepare items one by one, to find one that kills the process.

    Each item is reported before it is read, so that the last report names the one that kills.
    """
    for item in range(start, stop):
        report(item)
        with suppress(DataError):  # The item is bad, but the process lives.
            prepared(work.source, work.prepare, item, item + 1)
