"""Whether a store is what was packed: every record against its CRC32, every file of a folder against its SHA-256, all against the digest."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from framework.contracts.records import Manifest, RecordStore, Shard
from framework.errors import DataError
from framework.pack.engine.jobs import file_sha256
from framework.pack.engine.packing import PackProgress, Tell
from framework.pack.engine.process_pool import Crew, Say
from framework.pack.engine.publish import size_of, spans
from framework.store.checksum import content_crcs, digest
from framework.store.open_store import open_store

WHOLE_FILE = {101, 117, 118}  # errors that are of a file, whichever record is asked for


class Verified(NamedTuple):
    """``findings``: a line for everything that is wrong; ``num_bad``: records that are not what was packed."""

    num_records: int
    num_bytes: int
    num_bad: int
    findings: list[str]


class _Span(NamedTuple):
    """What became of some records: the damaged ones, and the checksums of what was read (of all, or [])."""

    findings: list[str]
    crcs: list[int]


def verify(path: str, num_workers: int, tell: Tell) -> Verified:
    """Read all of the store at ``path`` with ``num_workers`` processes (0: this one). Constant memory, but for 4 bytes a record."""
    store = open_store(path)
    try:
        manifest = store.manifest
    except DataError as error:
        return Verified(0, 0, 0, [str(error)])
    size = size_of(Path(path))
    ranges = (
        range(int(span[0]), int(span[-1]) + 1) for span in spans(manifest.num_records, size)
    )  # tensors would be shared
    tasks: list[Any] = [*ranges, *manifest.shards]
    results: dict[int, _Span] = {}
    findings: list[str] = []
    now = PackProgress("checking", 0, manifest.num_records, 0, 0, 0)
    with Crew(partial(_check, store, path), num_workers, lambda *_: None) as crew:
        for event in crew.run(tasks):
            if event.kind == "lost":
                findings.append(
                    f"{path}: {_told(event.task)}: reading kills the process (exit code {event.value})"
                )
            elif isinstance(event.task, Shard):
                findings += event.value
            else:
                results[event.task.start] = event.value
                count = len(event.task)
                now = now._replace(items=now.items + count, records=now.records + count)
                now = now._replace(num_bytes=size * now.records // max(1, manifest.num_records))
                tell(now)
    ordered = [results[start] for start in sorted(results)]
    bad = list(dict.fromkeys(line for span in ordered for line in span.findings))
    findings = [*bad, *sorted(findings), *_compare(path, manifest, ordered, findings or bad)]
    store.close()
    return Verified(manifest.num_records, size, len(bad), findings)


def _told(task: Any) -> str:
    return task.name if isinstance(task, Shard) else f"records {task.start} to {task.stop - 1}"


def _compare(
    path: str, manifest: Manifest, ordered: Sequence[_Span], known: Sequence[str]
) -> list[str]:
    """The digest against all checksums, where nothing is known to be wrong yet: records may have been exchanged with their checksums."""
    if known or digest([crc for span in ordered for crc in span.crcs]) == manifest.digest:
        return []
    return [
        str(
            DataError(
                156,
                path,
                "its records are not those its digest is of",
                "pack it again from the source",
            )
        )
    ]


def _check(store: RecordStore, path: str, task: Any, say: Say) -> Any:
    """In whatever process: some records, or one file."""
    if not isinstance(task, Shard):
        return _check_records(store, torch.arange(task.start, task.stop))
    file = Path(os.path.join(path, task.name))
    if file_sha256(file) == task.sha256:
        return []
    return [
        str(
            DataError(
                156, str(file), "its SHA-256 is not the manifest's", "pack it again from the source"
            )
        )
    ]


def _check_records(store: RecordStore, indices: Tensor) -> _Span:
    try:
        records = store.read(indices)
        bad = store.damaged(indices, records)
        crcs = content_crcs(records, store.manifest.fields)
    except DataError as error:
        if len(indices) == 1 or error.args[0] in WHOLE_FILE:
            return _Span([str(error)], [])
        halves = [_check_records(store, half) for half in torch.tensor_split(indices, 2)]
        return _Span(
            [line for half in halves for line in half.findings],
            [crc for half in halves for crc in half.crcs],
        )
    return _Span([str(_damaged(store, index)) for index in bad], crcs)


def _damaged(store: RecordStore, index: int) -> DataError:
    return DataError(
        156, store.name(index), "does not match its CRC32", "pack it again from the source"
    )
