"""The last step: the jobs' files become one store, which only then replaces an old one.

Of a packing with splits the records of all jobs become a store per split. A split is known only
after all records are: classes and groups are counted first. So the items are read once, into the
jobs' files, and each split is joined from all of these.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
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
from framework.store.file_store import digest_of, from_json, to_json
from framework.store.foreign import HEAD_BYTES, file_kind
from framework.store.open_store import MANIFEST, open_file, open_store
from framework.system.durable import move, write_text

DAMAGED = (104, 105)  # the errors for a file whose manifest shows that it is a store of ours
JOIN_BYTES = 8 << 20  # copied at once, so that memory does not grow with the store
JOIN_RECORDS = 4096
NUMBERED_BYTES = 2 << 20
NUMBERED_RECORDS = 1 << 15


class Joining(NamedTuple):
    """The task to join the files of all jobs, or some of their records, into one store.

    Attributes:
        manifest: Of the store; its digest and its counts are not known yet.
        results: All jobs.
        target: The file to write.
        chosen: For each job, whether each of its records is wanted: bool [records]; None: all are.
    """

    manifest: Manifest
    results: Sequence[JobResult]
    target: Path
    chosen: Sequence[np.ndarray] | None = None


def whole(manifest: Manifest, results: Sequence[JobResult]) -> Manifest:
    """Return the manifest with the counts of all jobs, and their first key.

    There is one if the keys of all jobs are consecutive numbers.
    """
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

    Raises:
        DataError: D155 for a file that was damaged meanwhile. Its job is forgotten, so that the
            same command does it again.
    """
    if task.target.is_dir():
        shutil.rmtree(task.target)

    def chunks() -> Iterator[Chunk]:
        for number, job in enumerate(task.results):
            chosen = None if task.chosen is None else task.chosen[number]
            if job.num_records and (chosen is None or chosen.any()):
                for chunk in _read_back(job, chosen, journal):
                    is_numbered = task.manifest.first_key is not None
                    yield chunk if is_numbered else with_listed_keys(chunk)
                    row[1] += len(chunk.keys)
                    row[2] += job.num_bytes * len(chunk.keys) // job.num_records
                    tell()

    write_file(make_writer, task.target, task.manifest, chunks(), with_statistics=True)


def _read_back(job: JobResult, chosen: np.ndarray | None, journal: Journal) -> Iterator[Chunk]:
    """Yield the chosen records of a job's file."""
    with closing(open_store(str(journal.file(job.number)))) as store:
        for indices in spans(job.num_records, job.size_bytes, job.first_key is not None):
            if chosen is not None:
                indices = indices[torch.from_numpy(chosen[indices.numpy()])]  # noqa: PLW2901
            if not len(indices):
                continue
            records = store.read(indices)
            if damaged := store.damaged(indices, records):
                journal.forget(job.number)
                what = f"{len(damaged)} records do not match their checksums any more"
                fix = "the same command packs them again; look at the disk"
                raise DataError(155, store.name(damaged[0]), what, fix)
            yield Chunk(as_written(records), keys_of(store, indices))


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


def spans(num_records: int, num_bytes: int, numbered: bool = False) -> Iterator[Tensor]:
    """Yield all indices in ascending ranges whose records are some megabytes each.

    ``numbered`` says whether keys are numbers, so that a record costs little more than its bytes.
    """
    most, most_bytes = JOIN_RECORDS, JOIN_BYTES
    if numbered:
        most, most_bytes = NUMBERED_RECORDS, NUMBERED_BYTES
    step = max(1, min(most, most_bytes * num_records // max(1, num_bytes)))
    for start in range(0, num_records, step):
        yield torch.arange(start, min(start + step, num_records))


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
    manifest = replace(manifest, shards=_shards(journal, results), digest=digest_of(crcs))
    for name in set(os.listdir(journal.files)) - {shard.name for shard in manifest.shards}:
        (journal.files / name).unlink()  # its job was done again, and has no records now
    target = journal.files / MANIFEST
    write_text(target, to_json(manifest) + "\n")
    with closing(open_store(str(journal.files))) as store:
        manifest = replace(manifest, statistics=statistics_of(store))
    write_text(target, to_json(manifest) + "\n")
    move(journal.files, path)


def is_put(journal: Journal, results: Sequence[JobResult], path: Path) -> bool:
    """Return whether ``put_folder`` was killed after it had moved its folder to ``path``."""
    try:
        manifest = from_json(str(path), (path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, DataError, ValueError):
        return False
    return not journal.files.exists() and list(manifest.shards) == _shards(journal, results)


def _shards(journal: Journal, results: Sequence[JobResult]) -> list[Shard]:
    return [
        Shard(
            journal.file(job.number).name,
            job.num_records,
            job.size_bytes,
            job.sha256,
            job.digest,
        )
        for job in results
        if job.num_records
    ]


def check_place(path: Path) -> None:
    """Check that packing replaces nothing but a store of ours.

    A damaged store may be replaced if its manifest is found. A file that is not readable at all may
    be another program's.

    Raises:
        DataError: D115 if something else is at ``path``.
    """
    if path.is_symlink():
        raise DataError(115, str(path), "is a link", "give the place it points to")
    if not path.exists():
        return
    is_ours = False
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if file_kind(head) is not None:
            with closing(open_file(str(path))) as store:
                try:
                    is_ours = bool(store.manifest)
                except DataError as error:
                    is_ours = error.args[0] in DAMAGED
    else:
        try:
            manifest = from_json(str(path), (path / MANIFEST).read_bytes())
            names = {MANIFEST, *(shard.name for shard in manifest.shards)}
            is_ours = set(os.listdir(path)) <= names
        except (OSError, DataError):
            is_ours = False
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
    """Return the task that makes the store of each split, by its name.

    Args:
        rule: Divides the records.
        manifest: Of all records.
        results: All jobs.
        journal: Has their files.

    Raises:
        ConfigError: C244 if a split has no record.
    """
    hashes: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for job in results:
        if job.num_records:
            with closing(open_store(str(journal.file(job.number)))) as store:
                hashes.append(hashed(_texts(rule, store)))
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


def _texts(rule: SplitRule, store: RecordStore) -> list[bytes]:
    """Return what is hashed of each record: its key, a part of it, or the value of a field."""
    if rule.field is None:
        keys = keys_of(store, torch.arange(store.manifest.num_records))
        texts = rule.texts(keys, store.name(0))
        return [text.encode(errors="surrogateescape") for text in texts]
    values = column_of(store, rule.field)
    if isinstance(values, Ragged):
        return [text.tobytes() for text in values.arrays()]
    return [str(number).encode() for number in values.flatten().tolist()]
