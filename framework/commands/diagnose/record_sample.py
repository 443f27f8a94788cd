"""Pack some records of a large store as advice would pack all of them, to try it quickly."""

import time
from dataclasses import replace
from typing import Any, NamedTuple

from framework.commands.diagnose.verdict import ENDINGS, Repack
from framework.commands.pack.measure_encodings import write_store
from framework.contracts.records import Chunk, RecordInput
from framework.input.folder import FolderInput
from framework.input.store import StoreInput
from framework.order.permutation import permutation
from framework.pack.images import Preparation
from framework.pack.jobs import chunk_bytes
from framework.pack.pack_store import pack
from framework.pack.packing import MakeWriter, Packing
from framework.store.hdf5_store import HDF5Writer
from framework.store.lmdb_store import LMDBWriter

RUN = 8  # neighbors read together, since a chunk or a place on the disk serves all of them
LARGEST_BYTES = 512 << 20
WRITERS: dict[str, MakeWriter] = {"hdf5": HDF5Writer, "lmdb": LMDBWriter}


class RecordSample(NamedTuple):
    path: str
    record_s: float  # seconds to pack a record
    record_bytes: float  # of a packed record


def write_sample(repack: Repack, folder: str, wanted: int, seconds: float) -> RecordSample:
    """Pack evenly spread records in about ``seconds``, and repeat them up to ``wanted``."""
    source = _input(repack, repack.path)
    prepare = Preparation(**repack.options)
    fields = prepare.fields(source)
    num_records = source.manifest.num_records
    starts = permutation(-(-num_records // RUN), 0, 0).tolist()
    chunks: list[Chunk] = []
    num_different = 0
    begin = time.perf_counter()
    while starts and num_different < wanted:
        if chunks and time.perf_counter() - begin >= seconds:
            break
        first = starts.pop() * RUN
        chunks.append(prepare(source.read(first, min(first + RUN, num_records))))
        num_different += len(chunks[-1].keys)
    record_s = (time.perf_counter() - begin) / num_different
    num_bytes = max(1, sum(map(chunk_bytes, chunks)))
    times = max(1, min(-(-wanted // num_different), LARGEST_BYTES // num_bytes))
    total = num_different * times
    path = f"{folder}/sample{ENDINGS[repack.output]}"
    manifest = replace(source.manifest, fields=fields, num_records=total, options={})
    repeated = (
        chunk._replace(keys=[f"{number}/{key}" for key in chunk.keys])
        for number in range(times)
        for chunk in chunks
    )
    write_store(WRITERS[repack.output], path, manifest, repeated)
    return RecordSample(path, record_s, num_bytes / num_different)


def pack_all(repack: Repack) -> None:
    """Pack every split to its target."""
    for path, target in repack.paths.values():
        source = _input(repack, path)
        pack(Packing(source, WRITERS[repack.output], target, Preparation(**repack.options)), None)


def _input(repack: Repack, path: str) -> RecordInput:
    made: Any = StoreInput(path)
    if repack.source == "folder":
        made = FolderInput(path, None, None, repack.follow_links)
    return made
