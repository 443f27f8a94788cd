"""The last step: the jobs' files become one store, which only then takes the place of an old one."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import (
    ChannelStatistics,
    Manifest,
    RecordStore,
    RecordWriter,
    Shard,
)
from framework.errors import DataError
from framework.pack.engine.jobs import MakeWriter, Moved
from framework.pack.engine.journal import Bad, Done, Journal
from framework.store.channel_statistics import (
    READ_RECORDS,
    StatisticsSampler,
    add_read,
    sample_indices,
)
from framework.store.checksum import digest
from framework.store.hdf5_store import SIGNATURE
from framework.store.lmdb_btree import META_MAGIC
from framework.store.manifest import from_json, to_json
from framework.store.open_store import open_file, open_store
from framework.store.shards import MANIFEST
from framework.system.durable import move, uninterrupted, write_text

FOREIGN = 103  # the number of "not a store of ours"
JOIN_BYTES, JOIN_RECORDS = (
    8 << 20,
    4096,
)  # copied at once: memory stays the same whatever the store's size


def whole(manifest: Manifest, done: Sequence[Done]) -> Manifest:
    """The manifest over all jobs."""
    counts = (
        np.sum([job.class_counts for job in done], axis=0, dtype=np.int64).tolist()
        if manifest.classes
        else []
    )
    return replace(manifest, num_records=sum(job.num_records for job in done), class_counts=counts)


def joined_path(journal: Journal) -> Path:
    """Where the joined file is made."""
    return journal.folder / f"joined{journal.suffix}"


def join(
    manifest: Manifest, done: Sequence[Done], journal: Journal, make_writer: MakeWriter, say: Any
) -> None:
    """Stream the jobs' files into one, in order, comparing every record with its checksum. DataError D155 for one that was damaged
    meanwhile: its job is forgotten, so that the same command does it again.
    """
    target = joined_path(journal)
    if target.is_dir():
        shutil.rmtree(target)
    writer: RecordWriter | None = None
    try:
        with uninterrupted():
            writer = make_writer(
                str(target), fields=manifest.fields, num_records=manifest.num_records
            )
        sampler = StatisticsSampler(manifest.fields, manifest.num_records)
        for job in done:
            if job.num_records:
                _append(writer, job, journal, say, sampler)
        manifest = replace(manifest, statistics=sampler.result())
        with uninterrupted():
            writer.close(manifest)
    finally:
        if writer is not None:
            writer.abort()


def _append(
    writer: RecordWriter, job: Done, journal: Journal, say: Any, sampler: StatisticsSampler
) -> None:
    store = open_store(str(journal.file(job.number)))
    try:
        for indices in spans(job.num_records, job.size_bytes):
            records = store.read(indices)
            if damaged := store.damaged(indices, records):
                journal.forget(job.number)
                what = f"{len(damaged)} records do not match their checksums any more"
                raise DataError(
                    155,
                    store.name(damaged[0]),
                    what,
                    "the same command packs them again; look at the disk",
                )
            plain = {name: _plain(values) for name, values in records.items()}
            sampler.pass_by(plain, len(indices))
            with uninterrupted():
                writer.write(plain, keys_of(store, indices))
            say(Moved(0, len(indices), job.num_bytes * len(indices) // job.num_records))
    finally:
        store.close()


def spans(num_records: int, num_bytes: int) -> Iterator[Tensor]:
    """All indices, cut so that the records of each are some megabytes."""
    step = max(1, min(JOIN_RECORDS, JOIN_BYTES * num_records // max(1, num_bytes)))
    for start in range(0, num_records, step):
        yield torch.arange(start, min(start + step, num_records))


def keys_of(store: RecordStore, indices: Tensor) -> list[str]:
    """The records' names."""
    return [store.key(index) for index in indices.tolist()]


def _plain(values: Any) -> Any:
    """What a writer takes: arrays, and lists of bytes."""
    return values.numpy() if isinstance(values, Tensor) else [bytes(value) for value in values]


def put_joined(journal: Journal, done: Sequence[Done], path: Path, joins: bool) -> None:
    """The one file takes its name: the joined one, or the only one there is."""
    only = next(job for job in done if job.num_records)
    move(joined_path(journal) if joins else journal.file(only.number), path)


def put_folder(manifest: Manifest, done: Sequence[Done], journal: Journal, path: Path) -> None:
    """The jobs' files are the store; its manifest, written last, says which."""
    statistics = _measured(manifest, done, journal)
    full = replace(
        manifest, shards=shards(journal, done), digest=digest(_crcs(done)), statistics=statistics
    )
    for name in set(os.listdir(journal.files)) - {shard.name for shard in full.shards}:
        (journal.files / name).unlink()  # of a job that was done again, and has no records now
    write_text(journal.files / MANIFEST, to_json(full) + "\n")
    move(journal.files, path)


def _measured(
    manifest: Manifest, done: Sequence[Done], journal: Journal
) -> dict[str, ChannelStatistics]:
    """The statistics over all jobs' files, of the same records as in one file."""
    sampler = StatisticsSampler(manifest.fields, manifest.num_records)
    wanted, start = sample_indices(manifest.num_records), 0
    for job in done:
        mine = wanted[(wanted >= start) & (wanted < start + job.num_records)] - start
        start += job.num_records
        if len(mine):
            with closing(open_store(str(journal.file(job.number)))) as store:
                for indices in mine.split(READ_RECORDS):
                    add_read(sampler, store, indices)
    return sampler.result()


def shards(journal: Journal, done: Sequence[Done]) -> list[Shard]:
    """The files of a store that is a folder."""
    full = [job for job in done if job.num_records]
    names = [journal.file(job.number).name for job in full]
    return [
        Shard(name, job.num_records, job.size_bytes, job.sha256, digest(_crcs([job])))
        for name, job in zip(names, full, strict=True)
    ]


def _crcs(done: Sequence[Done]) -> np.ndarray:
    return np.frombuffer(bytes.fromhex("".join(job.crcs for job in done)), ">u4")


def is_put(journal: Journal, done: Sequence[Done], path: Path) -> bool:
    """Whether the folder at ``path`` is the one ``put_folder`` would make: it was killed after that."""
    try:
        found = from_json(str(path), (path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, DataError, ValueError):
        return False
    return not journal.files.exists() and list(found.shards) == shards(journal, done)


def check_place(path: Path) -> None:
    """DataError D115 where what stands at ``path`` would be lost: only a store of ours, whole or damaged, may be replaced."""
    if path.is_symlink():
        raise DataError(115, str(path), "is a link", "give the place it points to")
    if not path.exists() or (
        _is_our_folder(path) if path.is_dir() else path.is_file() and _is_our_file(path)
    ):
        return
    raise DataError(
        115,
        str(path),
        "is there already, and no store of ours",
        "choose another output.path, or remove it",
    )


def _is_our_folder(path: Path) -> bool:
    try:
        found = from_json(str(path), (path / MANIFEST).read_bytes())
    except (OSError, DataError):
        return False
    return set(os.listdir(path)) <= {MANIFEST, *(shard.name for shard in found.shards)}


def _is_our_file(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(20)
    if not head.startswith(SIGNATURE) and head[16:] != META_MAGIC.to_bytes(4, "little"):
        return False
    store = open_file(str(path))
    try:
        return bool(store.manifest)
    except DataError as error:
        return error.args[0] != FOREIGN  # a damaged one is to be packed again
    finally:
        store.close()


def list_bad(path: Path, bad: Sequence[Bad]) -> Path:
    """``PATH.bad.jsonl``, a line per item that was left out; none where nothing was."""
    listing = path.with_name(f"{path.name}.bad.jsonl")
    if bad:
        write_text(listing, "".join(json.dumps(item._asdict()) + "\n" for item in sorted(bad)))
    else:
        listing.unlink(missing_ok=True)
    return listing


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(
        file.stat().st_size
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file()
    )
