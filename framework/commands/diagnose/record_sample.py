"""A small store packed from some records of a large one, as advice would pack all of them: to try it before anybody packs for an hour."""

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

RUN = 8  # neighbors read together: a chunk or a place on the disk serves all of them
LARGEST_BYTES = 512 << 20  # of a sample
WRITERS: dict[str, Callable[..., RecordWriter]] = {"hdf5": HDF5Writer, "lmdb": LMDBWriter}


class RecordSample(NamedTuple):
    """``num_different`` records at ``path``, repeated until there are ``num_records``. ``record_s``: seconds that packing one took."""

    path: str
    num_records: int
    num_different: int
    record_s: float


def input_of(source: str, path: str) -> RecordInput:
    found: Any = FolderInput(path, None, None) if source == "folder" else StoreInput(path)
    return found


def preparation_of(repack: Repack) -> Preparation:
    options: dict[str, Any] = dict(repack.options)
    return Preparation(**options)


def write_sample(repack: Repack, folder: str, wanted: int, seconds: float) -> RecordSample:
    """Records from evenly spread places, as many of ``wanted`` as ``seconds`` allow, repeated up to that number. DataError as packing."""
    source, prepare = input_of(repack.source, repack.path), preparation_of(repack)
    fields = prepare.fields(source)
    num_records, chunks, start = source.manifest.num_records, list[Chunk](), time.perf_counter()
    starts = permutation(-(-num_records // RUN), 0, 0).tolist()
    while (
        starts
        and (time.perf_counter() - start < seconds or not chunks)
        and sum(len(c.keys) for c in chunks) < wanted
    ):
        first = starts.pop() * RUN
        chunks.append(prepare(source.read(first, min(first + RUN, num_records))))
    num_different = sum(len(chunk.keys) for chunk in chunks)
    record_s = (time.perf_counter() - start) / num_different
    times = max(
        1, min(-(-wanted // num_different), LARGEST_BYTES // max(1, sum(map(_num_bytes, chunks))))
    )
    path = f"{folder}/sample{ENDINGS[repack.output]}"
    total = num_different * times
    writer = WRITERS[repack.output](path, fields=fields, num_records=total)
    try:
        for number in range(times):
            for chunk in chunks:
                writer.write(chunk.records, [f"{number}/{key}" for key in chunk.keys])
        writer.close(
            replace(source.manifest, fields=fields, num_records=total, class_counts=(), options={})
        )
    finally:
        writer.abort()
    return RecordSample(path, total, num_different, record_s)


def _num_bytes(chunk: Chunk) -> int:
    return sum(
        v.nbytes if isinstance(v, np.ndarray) else sum(map(len, v)) for v in chunk.records.values()
    )


def pack_all(repack: Repack) -> None:
    """Every split, to where the advice says. DataError, ResourceError as packing."""
    for path, target in repack.paths.values():
        writer = WRITERS[repack.output]
        pack(Packing(input_of(repack.source, path), writer, target, preparation_of(repack)), None)
