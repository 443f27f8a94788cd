"""Pack some records of a large store as advice would pack all of them, to try it quickly."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from framework.commands.diagnose.verdict import ENDINGS, Repack
from framework.contracts.records import Chunk, RecordInput, RecordWriter
from framework.input.folder import FolderInput
from framework.input.store import StoreInput
from framework.order import permutation
from framework.pack.engine.pack_store import pack
from framework.pack.engine.packing import Packing
from framework.pack.images import Preparation
from framework.store.hdf5_store import HDF5Writer
from framework.store.lmdb_store import LMDBWriter

RUN = 8  # neighbors read together, since a chunk or a place on the disk serves all of them
LARGEST_BYTES = 512 << 20
WRITERS: dict[str, Callable[..., RecordWriter]] = {"hdf5": HDF5Writer, "lmdb": LMDBWriter}


class RecordSample(NamedTuple):
    path: str
    num_records: int
    num_different: int  # records of the original store, which the sample repeats
    record_s: float  # seconds to pack a record


def write_sample(repack: Repack, folder: str, wanted: int, seconds: float) -> RecordSample:
    """Pack up to ``wanted`` evenly spread records in about ``seconds``, repeated up to ``wanted``.

    Raise what packing raises.
    """
    source = _input(repack.source, repack.path)
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
    num_bytes = max(1, sum(map(_num_bytes, chunks)))
    times = max(1, min(-(-wanted // num_different), LARGEST_BYTES // num_bytes))
    total = num_different * times
    path = f"{folder}/sample{ENDINGS[repack.output]}"
    writer = WRITERS[repack.output](path, fields=fields, num_records=total)
    try:
        for number in range(times):
            for chunk in chunks:
                writer.write(chunk.records, [f"{number}/{key}" for key in chunk.keys])
        manifest = replace(source.manifest, fields=fields, num_records=total)
        writer.close(replace(manifest, class_counts=(), options={}))
    finally:
        writer.abort()
    return RecordSample(path, total, num_different, record_s)


def pack_all(repack: Repack) -> None:
    """Pack every split to its target, and raise what packing raises."""
    for path, target in repack.paths.values():
        source = _input(repack.source, path)
        pack(Packing(source, WRITERS[repack.output], target, Preparation(**repack.options)), None)


def _input(source: str, path: str) -> RecordInput:
    store_input: Any = FolderInput(path, None, None) if source == "folder" else StoreInput(path)
    return store_input


def _num_bytes(chunk: Chunk) -> int:
    num_bytes = 0
    for values in chunk.records.values():
        num_bytes += values.nbytes if isinstance(values, np.ndarray) else sum(map(len, values))
    return num_bytes
