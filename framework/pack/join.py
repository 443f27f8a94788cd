"""The last step: the jobs' files become one store, or one per split, which replaces an old one."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import (
    LABEL,
    Chunk,
    KnowsKeys,
    Manifest,
    NumberKeys,
    Ragged,
    Records,
    RecordStore,
    Shard,
)
from framework.errors import DataError
from framework.pack.jobs import with_listed_keys, write_file
from framework.pack.packing import BadItem, JobResult, Journal, MakeWriter
from framework.pack.process_pool import Row, Tell
from framework.pack.split import STRATIFIED, SplitRule, hashed
from framework.store.channel_statistics import statistics_of
from framework.store.columns import column_of
from framework.store.file_store import digest, from_json, to_json
from framework.store.open_store import MANIFEST, open_file, open_store
from framework.system.durable import move, write_text

DAMAGED = (104, 105)  # the errors for a file whose manifest shows that it is a store of ours


class Joining(NamedTuple):
    """The task to join the files of all jobs, or some of their records, into one store."""

    manifest: Manifest
    results: Sequence[JobResult]
    target: Path
    chosen: Sequence[np.ndarray] | None = None  # of each job: bool [records]; None: all


def whole(manifest: Manifest, results: Sequence[JobResult]) -> Manifest:
    """Return the manifest with the counts of all jobs, and a first key if all keys follow it."""
    counts: Any = []
    if manifest.classes:
        counts = np.sum([job.class_counts for job in results], axis=0, dtype=np.int64).tolist()
    first_key: int | None = None
    num_records = 0
    for job in results:
        if job.num_records and not num_records:
            first_key = job.first_key
        elif job.num_records and first_key is not None and job.first_key != first_key + num_records:
            first_key = None
        num_records += job.num_records
    return replace(manifest, num_records=num_records, class_counts=counts, first_key=first_key)


def join(task: Joining, journal: Journal, make_writer: MakeWriter, row: Row, tell: Tell) -> None:
    """Stream the jobs' files into one, in order, and compare every record with its checksum.

    DataError D155 for a file that was damaged meanwhile; its job is forgotten, and done again.
    """
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
                        journal.forget(job.number)
                        what = f"{len(damaged)} records do not match their checksums any more"
                        fix = "the same command packs them again; look at the disk"
                        raise DataError(155, store.name(damaged[0]), what, fix)
                    chunk = Chunk(as_written(records), keys_of(store, part))
                    yield chunk if task.manifest.first_key is not None else with_listed_keys(chunk)
                    row[1] += len(part)
                    row[2] += job.num_bytes * len(part) // job.num_records
                    tell()

    write_file(make_writer, task.target, task.manifest, chunks(), with_statistics=True)


def as_written(records: Records) -> Records:
    """Return records that were read as a writer takes them."""
    written: Records = {}
    for name, values in records.items():
        if isinstance(values, Ragged):
            written[name] = values.arrays()
        elif isinstance(values, Tensor):
            written[name] = values.numpy()
        else:
            written[name] = list(map(bytes, values))
    return written


def records_at_once(num_records: int, num_bytes: int, numbered: bool) -> int:
    """Return how many records take some megabytes; ``numbered``: keys are numbers, of few bytes."""
    most, most_bytes = (1 << 15, 2 << 20) if numbered else (4096, 8 << 20)
    return max(1, min(most, most_bytes * num_records // max(1, num_bytes)))


def keys_of(store: RecordStore, indices: Tensor) -> Sequence[str]:
    """Return the keys of records, whose ``indices`` ascend."""
    first = store.manifest.first_key
    if first is None and isinstance(store, KnowsKeys):
        return store.keys(indices)
    if first is None or not len(indices):
        return [store.key(index) for index in indices.tolist()]
    keys = NumberKeys(first + int(indices[0]), first + int(indices[-1]) + 1)
    if len(keys) == len(indices):
        return keys
    return [str(first + index) for index in indices.tolist()]


def put_folder(
    manifest: Manifest, results: Sequence[JobResult], journal: Journal, path: Path
) -> None:
    """Move the folder of the jobs' files to ``path``, once its manifest is complete."""
    crcs = (journal.crcs(job.number) for job in results)
    shards = [
        Shard(
            journal.file(job.number).name, job.num_records, job.size_bytes, job.sha256, job.digest
        )
        for job in results
        if job.num_records
    ]
    manifest = replace(manifest, shards=shards, digest=digest(*crcs))
    for name in set(os.listdir(journal.files)) - {shard.name for shard in shards}:
        (journal.files / name).unlink()  # its job was done again, and has no records now
    target = journal.files / MANIFEST
    write_text(target, to_json(manifest) + "\n")
    with closing(open_store(str(journal.files))) as store:
        manifest = replace(manifest, statistics=statistics_of(store))
    write_text(target, to_json(manifest) + "\n")
    move(journal.files, path)


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
        fix = "choose another output.path, or remove it"
        what = "is there already, and is not recognizable as a store of ours"
        raise DataError(115, str(path), what, fix)


def list_bad(path: Path, bad: Sequence[BadItem]) -> Path:
    """Write ``PATH.bad.jsonl``, a line per bad item, or remove it if no item is bad."""
    listing = path.with_name(f"{path.name}.bad.jsonl")
    if bad:
        write_text(listing, "".join(json.dumps(item._asdict()) + "\n" for item in sorted(bad)))
    else:
        listing.unlink(missing_ok=True)
    return listing


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def split_tasks(
    rule: SplitRule, manifest: Manifest, results: Sequence[JobResult], journal: Journal
) -> dict[str, Joining]:
    """Return the task that makes the store of each split, once all records are known.

    ConfigError C244 if a split has no record.
    """
    hashes: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for job in results:
        if not job.num_records:
            continue
        with closing(open_store(str(journal.file(job.number)))) as store:
            if rule.field is None:
                keys = keys_of(store, torch.arange(job.num_records))
                texts = rule.texts(keys, store.name(0))
                values = [text.encode(errors="surrogateescape") for text in texts]
            else:
                column = column_of(store, rule.field)
                if isinstance(column, Ragged):
                    values = [text.tobytes() for text in column.arrays()]
                else:
                    values = [str(number).encode() for number in column.flatten().tolist()]
            hashes.append(hashed(values))
            if rule.by == STRATIFIED:
                labels.append(column_of(store, LABEL).numpy().reshape(-1))
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
