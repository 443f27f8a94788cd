"""Measure on a sample what each encoding costs: bytes, the rate of packing, the rate of reading."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from framework.contracts.records import Chunk, Field, Manifest, RecordInput
from framework.errors import ConfigError, DataError
from framework.measure.host import num_cores
from framework.media.decode import decode
from framework.media.frame_files import FrameFiles, frames_of
from framework.media.label_map import decode_labels
from framework.order.batches import spread
from framework.order.permutation import permutation
from framework.pack.jobs import chunk_bytes
from framework.pack.packing import MakeWriter, Prepare
from framework.store.hdf5_store import HDF5Writer
from framework.store.open_store import open_store
from framework.system.durable import temporary_name

NUM_SAMPLES = 200
SAMPLE_BYTES = 256 << 20  # of source items: enough to measure, little enough to hold
LEAST_WHOLE = 0.9  # of the sample must have one shape
READ_S = 0.5  # reading is measured for at least so long
BATCH = 16
DISK_BYTES_PER_S = 500e6  # assumed of a disk, for a store that memory cannot keep
CLOSE = 0.9  # of the best rate: a smaller store with such a rate is better


class Cost(NamedTuple):
    """What an encoding costs, or why it is not possible."""

    encode: str
    record_bytes: float = 0.0
    total_bytes: float = 0.0  # of the records of all items
    pack_rate: float = 0.0  # records/s on one core
    read_rate: float = 0.0  # records/s on all cores
    why_not: str = ""

    def rate_for(self, memory_bytes: int) -> float:
        """Return the rate of reading, from the disk if half the memory cannot hold the store."""
        if self.total_bytes <= memory_bytes / 2:
            return self.read_rate
        return min(self.read_rate, DISK_BYTES_PER_S / max(1.0, self.record_bytes))


class EncodingSample(NamedTuple):
    """Evenly spread items, as the input returns them."""

    chunks: list[Chunk]
    num_items: int
    num_bad: int


def take_sample(source: RecordInput) -> EncodingSample:
    """Read up to 200 items, fewer if they are large. DataError if none can be read."""
    chunks: list[Chunk] = []
    num_items = num_bad = num_bytes = 0
    total = source.manifest.num_records
    places = spread(total, min(NUM_SAMPLES, total))
    # In random order, so that the first few are evenly spread too.
    for place in places[permutation(len(places), 0, 0)].tolist():
        num_items += 1
        try:
            chunk = source.read(place, place + 1)
        except DataError:
            num_bad += 1
            continue
        if chunk.keys:
            chunks.append(chunk)
        num_bytes += chunk_bytes(chunk)
        if num_bytes > SAMPLE_BYTES:
            break
    return EncodingSample(chunks, num_items, num_bad)


def measure(
    source: RecordInput,
    sample: EncodingSample,
    path: str,
    options: Mapping[str, Any],
    make: Callable[[Mapping[str, Any]], Prepare],
) -> Cost:
    """Pack the sample beside ``path`` with ``options``, read it from the page cache, remove it."""
    encode = str(options["encode"])
    try:
        prepare = make(options)
        fields = prepare.fields(source)
        start = time.perf_counter()
        prepared = [_prepared(prepare, chunk, fields) for chunk in sample.chunks]
        chunks = [chunk for chunk in prepared if chunk is not None]
        prepare_s = time.perf_counter() - start
    except (ConfigError, DataError) as error:
        return Cost(encode, why_not=f"{error.args[1]}: {error.args[2]}")
    num_records = sum(len(chunk.keys) for chunk in chunks)
    if num_records < max(1, LEAST_WHOLE * sum(len(chunk.keys) for chunk in sample.chunks)):
        why_not = "most items are bad"
        if encode == "raw":
            why_not = "images differ in size: set pack.size"
        return Cost(encode, why_not=why_not)
    temporary = temporary_name(Path(path))
    manifest = replace(source.manifest, fields=fields, num_records=num_records)
    try:
        start = time.perf_counter()
        write_store(HDF5Writer, str(temporary), manifest, chunks)
        pack_s = prepare_s + time.perf_counter() - start
        size = temporary.stat().st_size / num_records
        rate = _read_rate(str(temporary))
    finally:
        temporary.unlink(missing_ok=True)
    per_item = num_records / max(1, sample.num_items - sample.num_bad)
    total = size * per_item * source.manifest.num_records
    return Cost(encode, size, total, num_records / pack_s, rate)


def _prepared(prepare: Prepare, chunk: Chunk, fields: Mapping[str, Field]) -> Chunk | None:
    """Return the chunk prepared; None if it is bad, or its raw records have other shapes."""
    try:
        result = prepare(chunk)
    except DataError:
        return None
    for name, field in fields.items():
        if field.encoding == "raw" and result.records[name].shape[1:] != tuple(field.shape):
            return None
    return result


def write_store(
    make_writer: MakeWriter, path: str, manifest: Manifest, chunks: Iterable[Chunk]
) -> None:
    """Write a store without counts of its classes."""
    writer = make_writer(path, fields=manifest.fields, num_records=manifest.num_records)
    try:
        for chunk in chunks:
            writer.write(chunk.records, chunk.keys)
        writer.close(replace(manifest, class_counts=()))
    finally:
        writer.abort()


def _read_rate(path: str) -> float:
    """Return the records read and decoded per second, in random order, by a thread per core."""
    store = open_store(path)
    count = store.manifest.num_records
    fields = store.manifest.fields
    images = {name: field for name, field in fields.items() if field.encoding == "image"}
    videos = {name: field for name, field in fields.items() if field.kind == "video"}

    def read(indices: torch.Tensor) -> None:
        records = store.read(indices)
        for name, field in images.items():
            for data in records[name]:
                if field.kind == "labels":
                    decode_labels(data)
                else:
                    decode(data, field.shape[0] or 3)
        for name, field in videos.items():
            for data in records[name]:
                frames = frames_of(data, field)
                if isinstance(frames, FrameFiles):
                    for file in frames:
                        decode(file, field.shape[3] or 3)
                else:
                    frames.copy()  # from the mapped file, as a batch does

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the pool's threads are the parallelism
    try:
        with ThreadPoolExecutor(num_cores()) as pool:
            list(pool.map(read, permutation(count, 0, 0).split(BATCH)))
            start = time.perf_counter()
            epochs = 0
            while time.perf_counter() - start < READ_S:
                epochs += 1
                list(pool.map(read, permutation(count, 0, epochs).split(BATCH)))
            return count * epochs / (time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
        store.close()


def recommend(costs: Sequence[Cost], room: float, memory_bytes: int) -> Cost | None:
    """Return the smallest of the fastest encodings, if there is one of at most ``room`` bytes."""
    possible = [cost for cost in costs if not cost.why_not and cost.total_bytes <= room]
    if not possible:
        return None
    least = CLOSE * max(cost.rate_for(memory_bytes) for cost in possible)
    fast = [cost for cost in possible if cost.rate_for(memory_bytes) >= least]
    return min(fast, key=lambda cost: cost.total_bytes)
