"""The check of a store: records by their CRC32, a folder's files by SHA-256, all by the digest."""

from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import RecordStore, Shard
from framework.errors import DataError, ResourceError
from framework.pack.jobs import ProcessPool, Row, Tell, file_sha256
from framework.pack.pack_store import records_at_once, size_of
from framework.pack.packing import OnProgress, PackProgress
from framework.store.file_store import content_crcs, digest
from framework.store.open_store import open_store

OF_A_FILE = {101, 117, 118}  # errors of a file, whatever record is read
FIX = "pack it again from the source"


class Verified(NamedTuple):
    """The outcome of a check. ``findings``: a line for everything that is wrong."""

    num_records: int
    num_bytes: int
    num_bad: int
    findings: list[str]


def verify(path: str, num_workers: int, on_progress: OnProgress) -> Verified:
    """Read all of the store at ``path`` with ``num_workers`` processes; 0: with this one.

    Memory grows by 4 bytes a record. ResourceError R153 if a process is killed.
    """
    try:
        store = open_store(path)
        manifest = store.manifest
    except DataError as error:
        return Verified(0, 0, 0, [str(error)])
    size, count = size_of(Path(path)), manifest.num_records
    step = records_at_once(count, size, manifest.first_key is not None)
    # ranges, since tensors would go through shared memory
    tasks: list[Any] = [range(count)[start : start + step] for start in range(0, count, step)]
    tasks += manifest.shards
    results: dict[int, tuple[list[str], np.ndarray]] = {}
    of_files: list[str] = []
    now = PackProgress("checking", count, 0, 0, 0, 0)
    do = partial(_check, store, path)
    try:
        with ProcessPool(do, num_workers, len(tasks), lambda _: None) as workers:
            for task, result in workers.run(tasks):
                if isinstance(task, Shard):
                    of_files += result
                    continue
                results[task.start] = result
                done = now.records + len(task)
                now = now._replace(items=done, records=done, num_bytes=size * done // count)
                on_progress(now)
    except BrokenProcessPool as error:
        fix = "look at memory and the disk, or check it with workers=0"
        raise ResourceError(153, path, "a process that read it was killed", fix) from error
    finally:
        store.close()
    ordered = [results[start] for start in sorted(results)]
    bad = list(dict.fromkeys(line for lines, _ in ordered for line in lines))
    findings = [*bad, *sorted(of_files)]
    # Without a finding, records may still have been exchanged together with their checksums.
    if not findings and digest(*(crcs for _, crcs in ordered)) != manifest.digest:
        findings = [str(DataError(156, path, "its records are not those its digest is of", FIX))]
    return Verified(count, size, len(bad), findings)


def _check(store: RecordStore, path: str, task: Any, row: Row, tell: Tell) -> Any:
    if not isinstance(task, Shard):
        return _check_records(store, torch.arange(task.start, task.stop))
    file = Path(path) / task.name
    if file_sha256(file) == task.sha256:
        return []
    return [str(DataError(156, str(file), "its SHA-256 is not the manifest's", FIX))]


def _check_records(store: RecordStore, indices: Tensor) -> tuple[list[str], np.ndarray]:
    """Return the findings, and the checksums of the records that could be read: uint32."""
    try:
        records = store.read(indices)
        bad = store.damaged(indices, records)
        crcs = content_crcs(records, store.manifest.fields)
    except DataError as error:
        if len(indices) == 1 or error.args[0] in OF_A_FILE:
            return [str(error)], np.empty(0, np.uint32)
        halves = [_check_records(store, half) for half in torch.tensor_split(indices, 2)]
        return halves[0][0] + halves[1][0], np.concatenate([crcs for _, crcs in halves])
    return [str(DataError(156, store.name(i), "does not match its CRC32", FIX)) for i in bad], crcs
