"""Compare ways to read records in random order from a store that is not in memory.

    python benchmarks/cold.py [--megabytes 1024] [--records 4000] [--rounds 3] [--folder DIR]

Raw records of 3, 27 and 150 kB are written as HDF5, as LMDB, as arrays in a .tar shard, and as one
file each. Before every measurement the files are dropped from the page cache. The ways take turns:
our reader, our reader that does not ask for pages beforehand, ``pathlib`` for the single files, and
a hand-written loop that copies rows of ``numpy.memmap``. The script prints the median records per
second, the ratio to the hand-written loop in the same round, and the bytes that the disk read for
each byte that was wanted.
"""

import argparse
import io
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from framework.contracts.records import Field, Manifest, RecordStore
from framework.store import file_store, gather
from framework.store.files import read_files
from framework.store.gather import should_ask
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from framework.store.lmdb_store import LMDBStore, LMDBWriter
from framework.store.staging import drop_cached
from framework.store.tar_store import TarStore

SIDES = (32, 96, 224)
BATCH = 64
WRITERS = {"h5": HDF5Writer, "lmdb": LMDBWriter}
STORES: dict[str, Callable[[str], RecordStore]] = {
    "h5": HDF5Store,
    "lmdb": LMDBStore,
    "tar": lambda path: TarStore(path, {"image": "npy"}),
}
HAND_WRITTEN = "numpy.memmap"


class Reading(NamedTuple):
    rate: float  # records per second
    read: float  # bytes of the disk for each byte of a record


def write(folder: Path, side: int, megabytes: int, num_files: int) -> int:
    """Write the stores, the plain array and the single files. Return the number of records."""
    count = megabytes * 10**6 // (3 * side * side)
    fields = {"image": Field("uint8", (3, side, side))}
    rng = np.random.default_rng(0)
    parts = [range(first, min(first + 1000, count)) for first in range(0, count, 1000)]
    writers = [
        writer(str(folder / f"{side}.{ending}"), fields=fields, num_records=count)
        for ending, writer in WRITERS.items()
    ]
    plain = np.memmap(folder / f"{side}.raw", np.uint8, "w+", shape=(count, 3, side, side))
    with tarfile.open(folder / f"{side}.tar", "w") as shard:
        for part in parts:
            images = rng.integers(0, 256, (len(part), 3, side, side), np.uint8)
            plain[part.start : part.stop] = images
            for writer in writers:
                writer.write({"image": images}, [str(number) for number in part])
            for number, image in zip(part, images, strict=True):
                add_array(shard, f"{number:08}.npy", image)
    plain.flush()
    (folder / f"{side}.files").mkdir()
    for number in range(num_files):
        plain[number].tofile(folder / f"{side}.files" / str(number))
    for writer in writers:
        writer.close(Manifest(count, fields))
    return count


def add_array(shard: tarfile.TarFile, name: str, array: np.ndarray) -> None:
    """Add an array to a shard, as a file of NumPy's own format."""
    data = io.BytesIO()
    np.save(data, array)
    entry = tarfile.TarInfo(name)
    entry.size = data.tell()
    data.seek(0)
    shard.addfile(entry, data)


def disk_bytes() -> int:
    """Return the bytes that this process has made the disk read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


Reads = Callable[[torch.Tensor], object]
Opens = Callable[[], Reads]


def measure(
    paths: Sequence[Path], record_bytes: int, batches: list[torch.Tensor], opened: Opens
) -> Reading:
    """Read all batches of cold files. The time to open a store does not count."""
    drop_cached([str(path) for path in paths])
    read = opened()
    before = disk_bytes()
    start = time.perf_counter()
    for batch in batches:
        read(batch)
    seconds = time.perf_counter() - start
    count = sum(map(len, batches))
    return Reading(count / seconds, (disk_bytes() - before) / (count * record_bytes))


def read_by_pathlib(paths: Sequence[str]) -> list[bytes]:
    return [Path(path).read_bytes() for path in paths]


def ways(folder: Path, side: int) -> dict[str, Callable[[list[torch.Tensor]], Reading]]:
    """Return a measurement for each way to read."""
    record_bytes = 3 * side * side

    def by_hand(batches: list[torch.Tensor]) -> Reading:
        path = folder / f"{side}.raw"

        def opened() -> Reads:
            plain = np.memmap(path, np.uint8, "r").reshape(-1, 3, side, side)
            return lambda batch: plain[batch.numpy()]

        return measure([path], record_bytes, batches, opened)

    def of_files(
        read: Callable[[Sequence[str]], list[bytes]], batches: list[torch.Tensor]
    ) -> Reading:
        paths = sorted((folder / f"{side}.files").iterdir())
        names = list(map(str, paths))
        order = torch.cat(batches).argsort().split(BATCH)  # as many files, in random order

        def opened() -> Reads:
            return lambda batch: read([names[number] for number in batch.tolist()])

        return measure(paths, record_bytes, list(order), opened)

    def ours(ending: str, asks: bool, batches: list[torch.Tensor]) -> Reading:
        for module in (file_store, gather):
            vars(module)["should_ask"] = should_ask if asks else lambda: False
        path = folder / f"{side}.{ending}"
        store = STORES[ending](str(path))

        def opened() -> Reads:
            store.read(torch.arange(1))  # maps the file
            return store.read

        reading = measure([path], record_bytes, batches, opened)
        store.close()
        return reading

    sides: dict[str, Callable[[list[torch.Tensor]], Reading]] = {HAND_WRITTEN: by_hand}
    for ending in STORES:
        sides[f"{ending}, one by one"] = lambda batches, ending=ending: ours(ending, False, batches)
        sides[ending] = lambda batches, ending=ending: ours(ending, True, batches)
    sides["files, pathlib"] = partial(of_files, read_by_pathlib)
    sides["files"] = partial(of_files, read_files)
    return sides


def main() -> None:
    """Print a row per record size and way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    print("| bytes of a record | way | records/s | times by hand | bytes read for a byte |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for side in SIDES:
            count = write(Path(folder), side, options.megabytes, options.records)
            generator = torch.Generator().manual_seed(0)
            order = torch.randperm(count, generator=generator)[: options.records]
            sides = ways(Path(folder), side)
            rounds = [
                {name: way(list(order.split(BATCH))) for name, way in sides.items()}
                for _ in range(options.rounds)
            ]
            for name in sides:
                rate = median(readings[name].rate for readings in rounds)
                times = median(r[name].rate / r[HAND_WRITTEN].rate for r in rounds)
                read = median(readings[name].read for readings in rounds)
                print(f"| {3 * side * side:,} | {name} | {rate:,.0f} | {times:.2f} | {read:.1f} |")
            shutil.rmtree(folder)
            Path(folder).mkdir()


if __name__ == "__main__":
    main()
