"""Jobs: ranges of items, each of which becomes one file of records, and processes that do them.

The input and the preparation alone decide them, so that any number of processes or machines make
the same files.
"""

import hashlib
import mmap
import multiprocessing
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts import records as contract
from framework.contracts.class_labels import IGNORE_INDEX
from framework.contracts.records import Chunk, Field, Manifest, NumberKeys, RecordInput, Records
from framework.errors import DataError, PacelineError, ResourceError, lacks_memory, words_of
from framework.order.batches import spread
from framework.pack import packing as packings
from framework.pack.packing import JobResult, Journal, PackPlan
from framework.store.file_store import content_crcs, digest
from framework.store.files import DiskReads, ask_item_files
from framework.store.store_facts import StatisticsSampler
from framework.system import memory, user_code
from framework.system.durable import uninterrupted
from framework.system.stopping import blocked_signals, die_with_parent, set_all

MAX_JOB_BYTES = 64 << 20  # take some seconds, and fit into memory
MAX_JOB_ITEMS = 4096
MIN_JOB_BYTES = 1 << 20  # packing them takes long beside a job's fsync, some milliseconds
TARGET_JOBS = 16  # about the fewest of a large input, so that workers share evenly
BLOCK_BYTES = 4 << 20  # a block is a run of items that are read, prepared and written at once
BLOCK_ITEMS = 1024
# The same of an input that reads arrays: more records at once, and less memory.
ARRAY_JOB_BYTES = 8 << 20
ARRAY_BLOCK_BYTES = 1 << 20
ARRAY_BLOCK_ITEMS = 1 << 17
HELD_BYTES = 2 * MAX_JOB_BYTES  # in memory; a larger job is read twice: to count, and to write
NUM_SIZE_SAMPLES = 8  # items that are read to estimate the size of all
LOOK_S = 0.1  # between two looks at the progress of other processes

_disk = DiskReads()

# An item's name, and the path, bytes and time of change of each of its files.
ItemStamp = tuple[str, tuple[tuple[str, int, int], ...]]
Row = np.ndarray  # int64 [4]: a task's done items, records, bytes; the item read now plus 1, or 0
Tell = Callable[[], object]
Prepare = Callable[[Chunk], Chunk]
Work = Callable[[Any, Row, Tell], Any]  # (task, row, tell) -> result

_served: list[tuple[Work, np.ndarray]] = []  # what a worker process does


@final
class ProcessPool(AbstractContextManager["ProcessPool"]):
    """Forked processes that do one task each. A context: leaving it kills all of them.

    ``rows`` is the progress of each task, in memory that the processes share: int64 [num_rows, 4].
    ``num_workers=0`` does tasks in this process. ``tell`` is called when rows may have changed.
    """

    def __init__(
        self, do: Work, num_workers: int, num_rows: int, tell: Callable[["ProcessPool"], object]
    ) -> None:
        self._do, self._tell = do, lambda: tell(self)
        self._most = 2 * num_workers  # tasks that are handed over
        self.rows = np.frombuffer(mmap.mmap(-1, 32 * max(1, num_rows)), np.int64).reshape(-1, 4)
        self._pool: ProcessPoolExecutor | None = None
        if num_workers and hasattr(os, "fork"):  # Windows packs in this process
            context, arguments = multiprocessing.get_context("fork"), (do, self.rows, os.getpid())
            self._pool = ProcessPoolExecutor(num_workers, context, _serve, arguments)

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            with uninterrupted():
                processes: Any = self._pool._processes or {}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # Python 3.14 can kill them
                for process in list(processes.values()):
                    process.kill()  # at once: what a job has not published does not count
                self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Do the tasks, whose rows are in their order. Yield each with its result once it is done.

        BrokenProcessPool if a process was killed; ResourceError R152 if one has no memory left.
        """
        self.rows[:] = 0
        numbered = enumerate(tasks)
        if self._pool is None:
            for row, task in numbered:
                yield task, self._do(task, self.rows[row], self._tell)
            return
        waiting: dict[Future[Any], Any] = {}
        while True:
            for row, task in islice(numbered, self._most - len(waiting)):
                # A process gets no signal before it is ready.
                with uninterrupted(), blocked_signals():
                    waiting[self._pool.submit(_attempt, task, row)] = task
            if not waiting:
                return
            done, _ = wait(waiting, LOOK_S, FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
            self._tell()


def _serve(do: Work, rows: np.ndarray, parent: int) -> None:
    set_all(signal.SIG_IGN)  # the parent alone decides what Ctrl-C and SIGTERM mean
    memory.keep_freed_memory()
    # A fork would wait for OpenMP threads that it does not have; and processes are the parallelism.
    torch.set_num_threads(1)
    die_with_parent()
    if os.getppid() != parent:  # the parent died before die_with_parent took effect
        os._exit(1)
    _served.append((do, rows))


def _attempt(task: Any, row: int) -> Any:
    """Do a task. Foreign errors become text, since some cannot be pickled."""
    do, rows = _served[-1]
    try:
        return do(task, rows[row], lambda: None)
    except PacelineError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # sent to the parent, which ends
        if lacks_memory(error):
            what = "a packing process had no memory left"
            raise ResourceError(152, "workers", what, "use fewer workers") from None
        text = f"{type(error).__name__}: {words_of(error)}\n{traceback.format_exc()}"
        raise user_code.user_error(error) or RuntimeError(text) from None


class PackWork(NamedTuple):
    """Everything that a process needs to do a job; ``manifest`` describes prepared records."""

    packing: packings.Packing
    manifest: Manifest
    journal: Journal
    plan: PackPlan


def make_plan(source: RecordInput, prepare: Prepare | None) -> PackPlan:
    """Plan the jobs from the mean size of a few evenly spread items."""
    num_items = source.manifest.num_records
    sizes: list[int] = []
    for item in spread(num_items, min(NUM_SIZE_SAMPLES, num_items)).tolist():
        with suppress(DataError):  # its job reports it
            sizes.append(chunk_bytes(prepared(source, prepare, item, item + 1)))
    item_bytes = max(1.0, sum(sizes) / max(1, len(sizes)))
    per_job = max(int(MIN_JOB_BYTES / item_bytes), -(-num_items // TARGET_JOBS))
    traits = contract.input_traits(source)
    if traits.range_files(0, num_items) is not None:  # reads arrays, item by record
        per_job = min(per_job, int(ARRAY_JOB_BYTES / item_bytes))
        per_block = min(ARRAY_BLOCK_ITEMS, int(ARRAY_BLOCK_BYTES / item_bytes))
    else:
        per_job = min(per_job, MAX_JOB_ITEMS, int(MAX_JOB_BYTES / item_bytes))
        per_block = min(BLOCK_ITEMS, int(BLOCK_BYTES / item_bytes))
    return PackPlan(num_items, max(1, per_job), max(1, per_block), item_bytes)


def prepared(source: RecordInput, prepare: Prepare | None, start: int, stop: int) -> Chunk:
    """Return the prepared records of items. An error of a single record names its item."""
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
    total = 0
    for values in chunk.records.values():
        if isinstance(values, np.ndarray):
            total += values.nbytes
        else:
            total += sum(memoryview(value).nbytes for value in values)
    return total


def do_job(work: PackWork, number: int, row: Row, tell: Tell) -> JobResult:
    """Write and note a job, once more if an item's files change meanwhile; D153 if they go on."""
    source = work.packing.source
    items = work.plan.items(number)
    changed: list[str] = []
    for _ in range(2):
        before = stamps(source, items.start, items.stop)
        result, crcs = _write(work, number, hash_of(before), row, tell)
        after = stamps(source, items.start, items.stop)
        changed = [old[0] for old, new in zip(before, after, strict=True) if old != new]
        if not changed:
            work.journal.note(result, crcs)
            row[3] = 0
            return result
    fix = "wait until the file is complete, then pack again"
    raise DataError(153, changed[0], "changes while it is packed", fix)


def stamps(source: RecordInput, start: int, stop: int) -> list[ItemStamp]:
    """Return the state of each item's files, or that of all if a range is read at once."""
    traits = contract.input_traits(source)
    files = traits.range_files(start, stop)
    if files is not None:
        read_at_once = [(f"{source.name(start)} and {stop - start - 1} more", files)]
    else:
        items = range(start, stop)
        read_at_once = [(source.name(n), traits.item_files(n)) for n in items]
    result: list[ItemStamp] = []
    for name, paths in read_at_once:
        files_of_item: list[tuple[str, int, int]] = []
        for path in paths:
            try:
                status = os.stat(path)
                files_of_item.append((path, status.st_size, status.st_mtime_ns))
            except (OSError, ValueError):  # ValueError: a zero byte in the path
                files_of_item.append((path, 0, 0))
        result.append((name, tuple(files_of_item)))
    return result


def hash_of(items: Sequence[ItemStamp]) -> str:
    return hashlib.sha256(repr(items).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(
    work: PackWork, number: int, stamp: str, row: Row, tell: Tell
) -> tuple[JobResult, np.ndarray]:
    bad: list[packings.BadItem] = []
    held: list[Chunk] | None = []
    keys: Sequence[str] | None = None  # as long as they are consecutive numbers
    row[:3] = 0
    for num_items, chunk in _read(work, number, bad, row):
        if chunk.keys and (keys or not row[1]):
            keys = contract.joined_keys([keys, chunk.keys] if keys else [chunk.keys])
            keys = keys if isinstance(keys, NumberKeys) else None
        row[:3] += num_items, len(chunk.keys), chunk_bytes(chunk)
        if row[2] > HELD_BYTES:
            held = None
        elif held is not None:
            held.append(chunk)
        tell()
    _, num_records, num_bytes, _ = row.tolist()
    path = work.journal.file(number)
    if path.is_dir():  # an older store: a kill came right after the finished file took its place
        shutil.rmtree(path)
    counts = np.zeros(len(work.manifest.classes), np.int64)
    crcs: list[np.ndarray] = [np.empty(0, np.uint32)]
    size, sha256 = 0, ""
    if num_records:
        # A second read finds the same bad items, which ``bad`` has already.
        chunks = held or (chunk for _, chunk in _read(work, number, [], row))

        def checked() -> Iterator[Chunk]:
            for chunk in chunks:
                if chunk.keys:
                    crcs.append(content_crcs(chunk.records, work.manifest.fields))
                    # Keys that are no range of numbers are stored as a string for each record.
                    yield chunk._replace(keys=list(chunk.keys)) if keys is None else chunk

        make_writer = work.packing.make_part or work.packing.make_writer
        manifest = replace(work.manifest, num_records=num_records)
        # The file of an only job may become the store, which has statistics.
        counts = write_file(make_writer, path, manifest, checked(), work.plan.num_jobs == 1)
        size, sha256 = path.stat().st_size, file_sha256(path)
    all_crcs = np.concatenate(crcs)
    first_key = keys.start if isinstance(keys, NumberKeys) else None
    facts = size, sha256, stamp, counts.tolist(), digest(all_crcs), first_key, bad
    return JobResult(number, num_records, num_bytes, *facts), all_crcs


def write_file(
    make_writer: packings.MakeWriter,
    path: Path,
    manifest: Manifest,
    chunks: Iterable[Chunk],
    with_statistics: bool,
) -> np.ndarray:
    """Write one file of records, and return the number of records of each class.

    A signal waits until the writer returns, since an exception may leave its library broken.
    """
    num_records = manifest.num_records
    sampler = StatisticsSampler(manifest.fields if with_statistics else {}, num_records)
    counts = np.zeros(len(manifest.classes), np.int64)
    writer: contract.RecordWriter | None = None
    try:
        with uninterrupted():
            writer = make_writer(str(path), fields=manifest.fields, num_records=num_records)
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


def class_counts(chunk: Chunk, num_classes: int) -> np.ndarray:
    """Count the records, or rows, of each class except ignored ones. DataError D152 for others."""
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
    work: PackWork, number: int, bad: list[packings.BadItem], row: Row
) -> Iterator[tuple[int, Chunk]]:
    """Yield the number of items of each block, and their records. Bad items are raised or noted."""
    source = work.packing.source
    items = work.plan.items(number)
    size = work.plan.items_per_block
    for start in items[::size]:
        stop = min(start + size, items.stop)
        # The disk reads the next block while this one is prepared. The first is asked for now.
        ahead = range(start if start == items.start else stop, min(stop + size, items.stop))
        if ahead and _disk.were_made(size):
            ask_item_files(source, ahead)
        row[3] = start + 1
        try:
            chunk = _checked(work, start, stop)
        except DataError:
            good: list[Chunk] = []
            for item in range(start, stop):
                try:
                    try:
                        good.append(_checked(work, item, item + 1))
                    except DataError:  # the file may have been incomplete a moment ago
                        good.append(_checked(work, item, item + 1))
                except DataError as error:
                    if work.packing.on_error != "skip":
                        raise
                    bad.append(packings.bad_item(item, source.name(item), error))
            chunk = joined([own for own in good if own.keys], work.manifest.fields)
        yield stop - start, chunk


def _checked(work: PackWork, start: int, stop: int) -> Chunk:
    """Return prepared records. D151: arrays unlike the manifest's. D243: a key without a split."""
    source, split = work.packing.source, work.packing.split
    chunk = prepared(source, work.packing.prepare, start, stop)
    if split is not None and split.field is None:
        split.texts(chunk.keys, source.name(start))
    for name, field in work.manifest.fields.items():
        if not chunk.keys or field.encoding in ("image", "frames"):
            continue
        arrays: Any = chunk.records[name]
        if field.encoding == "raw":
            arrays = arrays[:1]  # all records of an array have one shape
        wanted = tuple(field.shape)
        for key, array in zip(chunk.keys, arrays, strict=False):
            shape = tuple(array.shape)
            # The first size of ragged arrays is free.
            fits = shape == wanted or (len(shape) > 0 and (None, *shape[1:]) == wanted)
            if array.dtype != field.dtype or not fits:
                what = f"{name} is {array.dtype} {shape}, but the first record has "
                what += f"{field.dtype} {wanted}"
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
    return Chunk(records, contract.joined_keys([chunk.keys for chunk in chunks]))


def as_written(records: Records) -> Records:
    """Return records of a store as a writer takes them."""
    written: Records = {}
    for name, values in records.items():
        if isinstance(values, contract.Ragged):
            written[name] = values.arrays()
        elif isinstance(values, Tensor):
            written[name] = values.numpy()
        else:
            written[name] = list(map(bytes, values))
    return written


def keys_of(store: contract.RecordStore, indices: Tensor) -> Sequence[str]:
    """Return the keys of records, whose ``indices`` ascend."""
    first = store.manifest.first_key
    if first is not None and len(indices):
        keys = NumberKeys(first + int(indices[0]), first + int(indices[-1]) + 1)
        if len(keys) == len(indices):
            return keys
    return store.keys(indices)
