"""The check of a store: is it what was packed?

Every record is compared with its CRC32, every file of a folder with its SHA-256, and all records
with the digest.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import RecordStore, Shard
from framework.errors import DataError
from framework.pack.engine.jobs import file_sha256
from framework.pack.engine.packing import OnProgress, PackProgress
from framework.pack.engine.process_pool import ProcessPool, Send
from framework.pack.engine.publish import size_of, spans
from framework.store.checksum import content_crcs, digest_of
from framework.store.open_store import open_store

OF_A_FILE = {101, 117, 118}  # errors of a file, whatever record is read
FIX = "pack it again from the source"


class Verified(NamedTuple):
    """The outcome of a check. ``findings``: a line for everything that is wrong."""

    num_records: int
    num_bytes: int
    num_bad: int
    findings: list[str]


class _Checked(NamedTuple):
    """The findings on some records, and the checksums of those that could be read."""

    findings: list[str]
    crcs: np.ndarray  # uint32


def verify(path: str, num_workers: int, on_progress: OnProgress) -> Verified:
    """Read all of the store at ``path`` with ``num_workers`` processes; 0: with this one.

    Memory does not grow with the store, except for 4 bytes a record.
    """
    try:
        store = open_store(path)
        manifest = store.manifest
    except DataError as error:
        return Verified(0, 0, 0, [str(error)])
    size = size_of(Path(path))
    # ranges, since tensors would go through shared memory
    blocks = spans(manifest.num_records, size, manifest.first_key is not None)
    ranges = (range(int(block[0]), int(block[-1]) + 1) for block in blocks)
    tasks: list[Any] = [*ranges, *manifest.shards]
    results: dict[int, _Checked] = {}
    findings: list[str] = []
    now = PackProgress("checking", 0, manifest.num_records, 0, 0, 0)
    with ProcessPool(partial(_check, store, path), num_workers, lambda *_: None) as pool:
        for event in pool.run(tasks):
            task = event.task
            if event.kind == "lost":
                findings.append(f"{path}: {_lost(task)} (exit code {event.value})")
            elif isinstance(task, Shard):
                findings += event.value
            else:
                results[task.start] = event.value
                done = now.records + len(task)
                num_bytes = size * done // max(1, manifest.num_records)
                now = now._replace(items=done, records=done, num_bytes=num_bytes)
                on_progress(now)
    store.close()
    ordered = [results[start] for start in sorted(results)]
    bad = list(dict.fromkeys(line for result in ordered for line in result.findings))
    findings = [*bad, *sorted(findings)]
    # Without a finding, records may still have been exchanged together with their checksums.
    if not findings and digest_of(result.crcs for result in ordered) != manifest.digest:
        findings = [str(DataError(156, path, "its records are not those its digest is of", FIX))]
    return Verified(manifest.num_records, size, len(bad), findings)


def _lost(task: Any) -> str:
    what = task.name if isinstance(task, Shard) else f"records {task.start} to {task.stop - 1}"
    return f"{what}: reading kills the process"


def _check(store: RecordStore, path: str, task: Any, send: Send) -> Any:
    """Check a range of records or a file, in any process."""
    if not isinstance(task, Shard):
        return _check_records(store, torch.arange(task.start, task.stop))
    file = Path(os.path.join(path, task.name))
    if file_sha256(file) == task.sha256:
        return []
    return [str(DataError(156, str(file), "its SHA-256 is not the manifest's", FIX))]


def _check_records(store: RecordStore, indices: Tensor) -> _Checked:
    try:
        records = store.read(indices)
        bad = store.damaged(indices, records)
        crcs = content_crcs(records, store.manifest.fields)
    except DataError as error:
        if len(indices) == 1 or error.args[0] in OF_A_FILE:
            return _Checked([str(error)], np.empty(0, np.uint32))
        first, second = (_check_records(store, half) for half in torch.tensor_split(indices, 2))
        crcs = np.concatenate([first.crcs, second.crcs])
        return _Checked(first.findings + second.findings, crcs)
    what = "does not match its CRC32"
    return _Checked([str(DataError(156, store.name(i), what, FIX)) for i in bad], crcs)
