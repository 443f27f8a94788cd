"""The packing itself: items in, one store out, in the order of the items whatever the number of processes."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import numpy as np

from framework.contracts import Field, Manifest, RecordInput, Records, RecordWriter
from framework.errors import DataError, ResourceError
from framework.measure.host import die_with_parent

CHUNK = 64  # items per job: large enough that sending them costs nothing, small enough for the progress bar
Progress = Callable[[int, int], None]  # (records done, bytes done)
MakeWriter = Callable[..., RecordWriter]


def pack(source: RecordInput, make_writer: MakeWriter, path: str, num_workers: int, progress: Progress) -> Manifest:
    """Read every item of ``source`` with ``num_workers`` processes (0: here) and write one store at ``path``.

    What stood at ``path`` stays until the new store is whole. DataError names a bad item; ResourceError R101 a full disk.
    """
    manifest = source.manifest
    writer: RecordWriter | None = None
    try:
        writer = make_writer(fields=manifest.fields, num_records=manifest.num_records)
        counts = _write_all(_read_all(source, num_workers), writer, manifest, progress)
        manifest = replace(manifest, class_counts=counts.tolist())
        writer.close(manifest)
    except OSError as error:
        words = os.strerror(error.errno) if error.errno else str(error)
        raise ResourceError(101, path, f"cannot write: {words}", "free space or choose another place") from error
    finally:
        if writer is not None:
            writer.abort()
    return manifest


def _write_all(chunks: Iterator[Records], writer: RecordWriter, manifest: Manifest, progress: Progress) -> np.ndarray:
    """Returns the number of records of each class."""
    counts = np.zeros(len(manifest.classes), np.int64)
    num_records = num_bytes = 0
    for records in chunks:
        writer.write(records)
        if len(counts):
            counts += np.bincount(records["label"].astype(np.int64), minlength=len(counts))
        num_records += len(next(iter(records.values())))
        num_bytes += sum(_num_bytes(values) for values in records.values())
        progress(num_records, num_bytes)
    return counts


def _num_bytes(values: Any) -> int:
    return values.nbytes if isinstance(values, np.ndarray) else sum(map(len, values))


def _read_all(source: RecordInput, num_workers: int) -> Iterator[Records]:
    """The records in the items' order, a chunk at a time, a few chunks ahead."""
    num_records = source.manifest.num_records
    spans = [(start, min(start + CHUNK, num_records)) for start in range(0, num_records, CHUNK)]
    if num_workers == 0:
        yield from (source.read(*span) for span in spans)
        return
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)
    pool = ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(source,))
    under_way: deque[Future[Records]] = deque()
    try:
        for span in spans:
            under_way.append(pool.submit(_read, *span))
            if len(under_way) > 2 * num_workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BrokenProcessPool as error:
        raise ResourceError(
            102, f"workers = {num_workers}", "a packing process was killed", "look at memory; use fewer workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_source: RecordInput | None = None  # in a worker process: what it reads, handed over once and not with every job


def _start_worker(source: RecordInput) -> None:
    global _source  # noqa: PLW0603
    _source = source
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()


def _read(start: int, stop: int) -> Records:
    assert _source is not None
    return _source.read(start, stop)


def image_fields(channels: int, height: int | None, width: int | None, raw: bool) -> dict[str, Field]:
    """The fields of a labeled image set."""
    return {"image": Field("uint8", (channels, height, width), "raw" if raw else "image"), "label": Field("int64", ())}


def check_same_length(path: str, lengths: dict[str, int]) -> int:
    """The length all arrays share. DataError D111 where they differ or are empty."""
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DataError(111, path, f"its arrays have {lengths} records", "give arrays of one length, at least 1")
    return next(iter(lengths.values()))
