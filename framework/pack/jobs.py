"""Jobs: fixed ranges of items, each of which becomes one file of records.

An item is what an input reads at once, such as an image file. It becomes zero or more records.
The input and the preparation alone decide how many items a job has. Workers, memory and time never
do, so that any number of processes or machines make the same files.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from framework.pack.packing import (
    BadItem,
    JobResult,
    Journal,
    MakeWriter,
    Packing,
    PackPlan,
    Prepare,
)
from framework.pack.process_pool import Row, Tell
from framework.store.channel_statistics import StatisticsSampler
from framework.store.file_store import content_crcs, digest
from framework.store.files import DiskReads, ask_item_files
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


@dataclass(frozen=True)
class PackWork:
    """Everything that a process needs to do a job.

    Attributes:
        packing: What is packed.
        manifest: Describes the prepared records.
        journal: Notes the jobs that are done.
        plan: Divides the items into jobs.
    """

    packing: Packing
    manifest: Manifest
    journal: Journal
    plan: PackPlan

    @property
    def source(self) -> RecordInput:
        return self.packing.source

    def bad_item(self, item: int, error: DataError) -> BadItem:
        """Return the entry for an item that is left out. Raise ``error`` if bad items are not."""
        if self.packing.on_error != "skip":
            raise error
        reason = " ".join(str(error.args[2]).split())
        return BadItem(item, self.source.name(item), f"{error.letter}{error.args[0]}", reason)


class DiskFull(ResourceError):
    """R101 because the disk is full."""


def make_plan(source: RecordInput, prepare: Prepare | None) -> PackPlan:
    """Plan the jobs from the mean size of a few evenly spread items."""
    num_items = source.manifest.num_records
    sizes: list[int] = []
    for item in spread(num_items, min(NUM_SIZE_SAMPLES, num_items)).tolist():
        with suppress(DataError):  # its job reports it
            sizes.append(chunk_bytes(prepared(source, prepare, item, item + 1)))
    item_bytes = max(1.0, sum(sizes) / max(1, len(sizes)))
    per_job = max(int(MIN_JOB_BYTES / item_bytes), -(-num_items // TARGET_JOBS))
    reads_arrays = range_files_of(source, 0, num_items) is not None
    if reads_arrays:
        per_job = min(per_job, int(ARRAY_JOB_BYTES / item_bytes))
        per_block = min(ARRAY_BLOCK_ITEMS, int(ARRAY_BLOCK_BYTES / item_bytes))
    else:
        per_job = min(per_job, MAX_JOB_ITEMS, int(MAX_JOB_BYTES / item_bytes))
        per_block = min(BLOCK_ITEMS, int(BLOCK_BYTES / item_bytes))
    return PackPlan(num_items, max(1, per_job), max(1, per_block), item_bytes, reads_arrays)


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


def item_error(error: DataError, source: RecordInput, item: int, key: str) -> DataError:
    """Return an error that begins with a record's key with the name of its item before it."""
    number, where, what, fix = error.args
    name = source.name(item)
    where = where.removeprefix(key) if key in name else f": {where}"
    return DataError(number, f"{name}{where}", what, fix)


def chunk_bytes(chunk: Chunk) -> int:
    """Return the bytes of all records."""
    return sum(
        values.nbytes
        if isinstance(values, np.ndarray)
        else sum(memoryview(value).nbytes for value in values)
        for values in chunk.records.values()
    )


def do_job(work: PackWork, number: int, row: Row, tell: Tell) -> JobResult:
    """Read, prepare and publish a job's records, then note the job as done.

    If the files of an item change while its job is done, the job is done once more. Items that
    change during that attempt are bad.

    Raises:
        DataError: For a bad item, unless bad items are left out. D153 for one that changes.
    """
    start, stop = work.plan.item_range(number)
    changed: dict[int, BadItem] = {}
    num_attempts = 0
    while True:
        before = stamps(work.source, start, stop)
        result, crcs = _write(work, number, changed, hash_of(before), row, tell)
        pairs = zip(before, stamps(work.source, start, stop), strict=True)
        items = [item for item, (old, new) in enumerate(pairs, start) if old != new]
        num_attempts += 1
        if not items or num_attempts == 3:
            work.journal.note(result, crcs)
            row[3] = 0
            return result
        if num_attempts == 2:
            if work.plan.reads_arrays:  # one stamp for all items
                items = range(start, stop)
            for item in items:
                fix = "wait until the file is complete, then pack again"
                error = DataError(153, work.source.name(item), "changes while it is packed", fix)
                changed[item] = work.bad_item(item, error)


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
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(
    work: PackWork,
    number: int,
    excluded: Mapping[int, BadItem],
    stamp: str,
    row: Row,
    tell: Tell,
) -> tuple[JobResult, np.ndarray]:
    """Write a job's file without the items ``excluded``.

    Return the result, and the checksums: uint32 [num_records].
    """
    bad: list[BadItem] = []
    held: list[Chunk] | None = []
    keys: Sequence[str] | None = None  # as long as they are consecutive numbers
    row[:3] = 0
    for num_items, chunk in _read(work, number, excluded, bad, row):
        if chunk.keys and (keys or not row[1]):
            keys = joined_keys([keys, chunk.keys] if keys else [chunk.keys])
            keys = keys if isinstance(keys, NumberKeys) else None
        row[:3] += num_items, len(chunk.keys), chunk_bytes(chunk)
        if row[2] > HELD_BYTES:
            held = None
        elif held is not None:
            held.append(chunk)
        tell()
    _, num_records, num_bytes, _ = row.tolist()
    path = work.journal.file(number)
    if path.is_dir():
        # A finished file and the older store that it replaces change places. A kill right after
        # that leaves the older store here.
        shutil.rmtree(path)
    counts = np.zeros(len(work.manifest.classes), np.int64)
    crcs: list[np.ndarray] = [np.empty(0, np.uint32)]
    size, sha256 = 0, ""
    if num_records:
        # A second read finds the same bad items, which ``bad`` has already.
        chunks = held or (chunk for _, chunk in _read(work, number, excluded, [], row))
        if keys is None:
            chunks = map(with_listed_keys, chunks)

        def checked() -> Iterator[Chunk]:
            for chunk in chunks:
                if chunk.keys:
                    crcs.append(content_crcs(chunk.records, work.manifest.fields))
                    yield chunk

        make_writer = work.packing.make_part or work.packing.make_writer
        manifest = replace(work.manifest, num_records=num_records)
        # The file of an only job may become the store, which has statistics.
        is_only_job = work.plan.num_jobs == 1
        counts = write_file(make_writer, path, manifest, checked(), is_only_job)
        size, sha256 = path.stat().st_size, file_sha256(path)
    all_crcs = np.concatenate(crcs)
    result = JobResult(
        number=number,
        num_records=num_records,
        num_bytes=num_bytes,
        size_bytes=size,
        sha256=sha256,
        stamp=stamp,
        class_counts=counts.tolist(),
        digest=digest(all_crcs),
        first_key=keys.start if isinstance(keys, NumberKeys) else None,
        bad=bad,
    )
    return result, all_crcs


def with_listed_keys(chunk: Chunk) -> Chunk:
    """Return the chunk with a string for each key, which a file then stores."""
    return chunk._replace(keys=list(chunk.keys))


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
    if isinstance(error, ResourceError) and (isinstance(error, DiskFull) or error.args[0] != 101):
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
    labels = chunk.records["label"]
    owners = np.arange(len(labels))
    if isinstance(labels, list):  # a label per box, for example
        owners = np.repeat(owners, [len(own) for own in labels])
        labels = np.concatenate([np.zeros(0, np.int64), *labels])
    labels = np.asarray(labels).astype(np.int64).reshape(-1)
    is_counted = labels != IGNORE_INDEX
    is_wrong = is_counted & ((labels < 0) | (labels >= num_classes))
    if is_wrong.any():
        first = int(is_wrong.argmax())
        what = f"has label {labels[first]}, but classes are numbered from 0 to {num_classes - 1}"
        raise DataError(152, chunk.keys[int(owners[first])], what, "correct the labels")
    return np.bincount(labels[is_counted], minlength=num_classes)


def _read(
    work: PackWork, number: int, excluded: Mapping[int, BadItem], bad: list[BadItem], row: Row
) -> Iterator[tuple[int, Chunk]]:
    """Yield the number of items of each block, and their records. Add bad items to ``bad``."""
    first, last = work.plan.item_range(number)
    size = work.plan.items_per_block
    for start in range(first, last, size):
        stop = min(start + size, last)
        # The disk reads the next block while this one is prepared. Nobody asked for the first.
        ahead = range(start if start == first else stop, min(stop + size, last))
        if ahead and _disk.were_made(size):
            ask_item_files(work.source, ahead)
        row[3] = start + 1
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
            try:
                chunk = _checked(work, item, item + 1)
            except DataError:  # the file may have been incomplete a moment ago
                chunk = _checked(work, item, item + 1)
        except DataError as error:
            bad.append(work.bad_item(item, error))
            continue
        if chunk.keys:
            chunks.append(chunk)
    return joined(chunks, work.manifest.fields)


def _checked(work: PackWork, start: int, stop: int) -> Chunk:
    """Return prepared records.

    Raises:
        DataError: D151 if an array is not as the manifest says, D243 for a key without a split.
    """
    split = work.packing.split
    chunk = prepared(work.source, work.packing.prepare, start, stop)
    if split is not None and split.field is None:
        split.texts(chunk.keys, work.source.name(start))
    for name, field in work.manifest.fields.items():
        if not chunk.keys or field.encoding in ("image", "frames"):
            continue
        arrays: Any = chunk.records[name]
        if field.encoding == "raw":
            arrays = arrays[:1]  # all records of an array have one shape
        for key, array in zip(chunk.keys, arrays, strict=False):
            shape = tuple(array.shape)
            if field.encoding == "ragged":
                fits = len(shape) == len(field.shape) and shape[1:] == field.row_shape
            else:
                fits = shape == tuple(field.shape)
            if array.dtype != field.dtype or not fits:
                what = f"{name} is {array.dtype} {shape}, but the first record has "
                what += f"{field.dtype} {tuple(field.shape)}"
                fix = "give records of one shape; pack.size=[height,width] scales images to one"
                raise DataError(151, key, what, fix)
    return chunk


def joined(chunks: Sequence[Chunk], fields: Mapping[str, Field]) -> Chunk:
    """Join the records of all chunks. Without chunks, arrays have 0 records."""
    records: Records = {}
    for name, field in fields.items():
        parts = [chunk.records[name] for chunk in chunks]
        if field.encoding != "raw":
            records[name] = [value for part in parts for value in part]
        elif parts:
            records[name] = np.concatenate(parts)
        else:
            records[name] = np.empty((0, *(size or 0 for size in field.shape)), field.dtype)
    return Chunk(records, joined_keys([chunk.keys for chunk in chunks]))
