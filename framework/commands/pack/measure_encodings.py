"""What each encoding would cost, measured on a sample: bytes, the rate of packing, the rate of reading."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from framework.contracts.records import Chunk, Field, Manifest, RecordInput
from framework.errors import ConfigError, DataError
from framework.image.decode import decode
from framework.image.label_map import decode_labels
from framework.measure.host import num_cores
from framework.order import permutation, spread
from framework.pack.engine.jobs import Prepare
from framework.store.hdf5_store import HDF5Writer
from framework.store.open_store import open_store
from framework.system.durable import temporary_name

NUM_SAMPLES = 200
SAMPLE_BYTES = 256 << 20  # of source items: enough to measure, little enough to hold
READ_S = 0.5  # at least so long is read
BATCH = 16
DISK_BYTES_PER_S = 500e6  # assumed of a disk, where a store is more than memory can keep
CLOSE = 0.9  # of the best rate: then the smaller store is better


class Cost(NamedTuple):
    """What ``encode`` costs; bytes of all items' records, rates in records/s: packing on one core, reading on all. ``why_not``: not possible."""

    encode: str
    record_bytes: float = 0.0
    total_bytes: float = 0.0
    pack_rate: float = 0.0
    read_rate: float = 0.0
    why_not: str = ""

    def rate_for(self, memory_bytes: int) -> float:
        """The rate of reading that is left when the store does not fit into half the memory and comes from a disk."""
        if self.total_bytes <= memory_bytes / 2:
            return self.read_rate
        return min(self.read_rate, DISK_BYTES_PER_S / max(1.0, self.record_bytes))


class EncodingSample(NamedTuple):
    """Evenly spread items, as the input gives them."""

    chunks: list[Chunk]
    num_items: int
    num_bad: int


def take_sample(source: RecordInput) -> EncodingSample:
    """Up to 200 items, fewer where they are large. DataError where none can be read."""
    chunks: list[Chunk] = []
    num_items = num_bad = num_bytes = 0
    total = source.manifest.num_records
    for item in permutation(
        min(NUM_SAMPLES, total), 0, 0
    ).tolist():  # so that fewer are evenly spread too
        place = int(spread(total, min(NUM_SAMPLES, total))[item])
        num_items += 1
        try:
            chunks.append(source.read(place, place + 1))
        except DataError:
            num_bad += 1
            continue
        num_bytes += sum(
            getattr(v, "nbytes", 0) or sum(map(len, v)) for v in chunks[-1].records.values()
        )
        if num_bytes > SAMPLE_BYTES:
            break
    return EncodingSample([chunk for chunk in chunks if chunk.keys], num_items, num_bad)


def measure(
    source: RecordInput,
    sample: EncodingSample,
    path: str,
    options: Mapping[str, Any],
    make: Callable[[Mapping[str, Any]], Prepare],
) -> Cost:
    """Prepare the sample as ``options`` say, write it beside ``path``, read and decode it from the page cache, and remove it."""
    encode = str(options["encode"])
    try:
        prepare = make(options)
        fields = prepare.fields(source)
        start = time.perf_counter()
        chunks = [
            found
            for chunk in sample.chunks
            if (found := _tried(prepare, chunk, fields)) is not None
        ]
        prepare_s = time.perf_counter() - start
    except (ConfigError, DataError) as error:
        return Cost(encode, why_not=f"{error.args[1]}: {error.args[2]}")
    num_records = sum(len(chunk.keys) for chunk in chunks)
    if num_records < max(1, 0.9 * sum(len(chunk.keys) for chunk in sample.chunks)):
        return Cost(
            encode,
            why_not="images differ in size: set pack.size"
            if encode == "raw"
            else "most items are bad",
        )
    temporary = str(temporary_name(Path(path)))
    try:
        start = time.perf_counter()
        _store(temporary, chunks, replace(source.manifest, fields=fields, num_records=num_records))
        pack_s = prepare_s + time.perf_counter() - start
        size = os.path.getsize(temporary) / num_records
        rate = _read_rate(temporary)
    finally:
        Path(temporary).unlink(missing_ok=True)
    per_item = num_records / max(1, sample.num_items - sample.num_bad)
    total = size * per_item * source.manifest.num_records
    return Cost(encode, size, total, num_records / pack_s, rate)


def _tried(prepare: Prepare, chunk: Chunk, fields: Mapping[str, Field]) -> Chunk | None:
    """The chunk prepared; None where it is bad, or not what the others are."""
    try:
        found = prepare(chunk)
    except DataError:
        return None
    raw = [
        (found.records[name], field) for name, field in fields.items() if field.encoding == "raw"
    ]
    return found if all(array.shape[1:] == tuple(field.shape) for array, field in raw) else None


def _store(path: str, chunks: Sequence[Chunk], manifest: Manifest) -> None:
    writer = HDF5Writer(path, fields=manifest.fields, num_records=manifest.num_records)
    try:
        for chunk in chunks:
            writer.write(chunk.records, chunk.keys)
        writer.close(replace(manifest, class_counts=()))
    finally:
        writer.abort()


def _read_rate(path: str) -> float:
    """Records read and decoded per second, in random order, by a thread per core."""
    store = open_store(path)
    count = store.manifest.num_records
    images = {
        name: field for name, field in store.manifest.fields.items() if field.encoding != "raw"
    }

    def read(indices: torch.Tensor) -> None:
        records = store.read(indices)
        for name, field in images.items():
            for data in records[name]:
                if field.kind == "labels":
                    decode_labels(data)
                else:
                    decode(data, field.shape[0] or 3)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the pool's threads are the parallelism
    try:
        with ThreadPoolExecutor(num_cores()) as pool:
            list(pool.map(read, permutation(count, 0, 0).split(BATCH)))
            start, epochs = time.perf_counter(), 0
            while time.perf_counter() - start < READ_S:
                epochs += 1
                list(pool.map(read, permutation(count, 0, epochs).split(BATCH)))
            return count * epochs / (time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
        store.close()


def recommend(
    costs: Sequence[Cost], free: Callable[[Cost], bool], memory_bytes: int
) -> Cost | None:
    """The fastest to read of those that the disk holds; of those about as fast, the smallest. None: the disk holds none."""
    possible = [cost for cost in costs if not cost.why_not and free(cost)]
    if not possible:
        return None
    best = max(cost.rate_for(memory_bytes) for cost in possible)
    return min(
        (cost for cost in possible if cost.rate_for(memory_bytes) >= CLOSE * best),
        key=lambda cost: cost.total_bytes,
    )


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
