"""Measure many small records: packing, memory, opening, the first batch and random reading.

    python benchmarks/rows.py [--counts 100000 1000000] [--stores hdf5 lmdb] [--repeats 3]

A record is four float32, in one .npy file. Every figure comes from a process of its own: the whole
command ``paceline pack input=arrays workers=0``, from its start to its end, and then a process that
reads the store, once per repeat. What is shown is the median of the repeats (least, largest).

- **pack**: seconds of the command, less those of the same command for 1,000 records. ``CPU`` are
  its processor seconds, which tell more where other programs share the cores.
- **memory**: the largest resident set (VmHWM) of the command.
- **open**: from the path to the manifest. **first batch**: from ``source.batches`` to 256 records.
- **read**: random batches of 256, in the order of an epoch, for a second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]
COUNTS = (100_000, 1_000_000, 10_000_000, 100_000_000)
SMALLEST = 1000  # records of the command that is subtracted
BLOCK = 1 << 20
WIDTH = 4
BATCH = 256
LAP_S = 1.0
SUFFIXES = {"hdf5": "h5", "lmdb": "lmdb"}


class Run(NamedTuple):
    """The cost of a command: wall time, processor time and its largest resident set."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def make_array(path: Path, count: int) -> None:
    """Write normal numbers [count, WIDTH], in parts.

    They are not mapped: a command's largest resident set begins with that of the process that
    starts it.
    """
    rng = np.random.default_rng(0)
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, WIDTH)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start), WIDTH
            file.write(rng.standard_normal(size, np.float32).tobytes())


def run(words: Sequence[str]) -> Run:
    """Run a command to its end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    child = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"failed with exit code {child.returncode}: {' '.join(words)}")
    wall_s = time.perf_counter() - start
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def pack(array: Path, store: str) -> Run:
    path = array.with_suffix(f".{SUFFIXES[store]}")
    path.unlink(missing_ok=True)
    words = [sys.executable, "-m", "framework", "pack", "input=arrays", f"input.path={array}"]
    return run([*words, f"output={store}", f"output.path={path}", "workers=0"])


def read(path: str) -> dict[str, float]:
    """Open and read a store in this process."""
    from framework.contracts.data import SourceContext  # only where it is timed
    from framework.data.hdf5 import hdf5_source
    from framework.data.lmdb import lmdb_source
    from framework.order.batches import Order
    from framework.store.open_store import open_store
    from framework.transform.none import NoTransform

    start = time.perf_counter()
    store = open_store(path)
    size = store.manifest.num_records
    open_s = time.perf_counter() - start
    store.close()
    order = partial(Order, batch_size=BATCH, seed=0, shuffle=True)
    make = hdf5_source if path.endswith(".h5") else lmdb_source
    source = make(path, context=SourceContext(order, NoTransform()))
    start = time.perf_counter()
    batches = source.batches(0, 0)
    next(batches)
    first_s = time.perf_counter() - start
    epoch, count = 0, 0
    start = time.perf_counter()
    while time.perf_counter() - start < LAP_S:
        micro = next(batches, None)
        if micro is None:
            epoch += 1
            batches = source.batches(epoch, 0)
        else:
            count += len(micro.batch["index"])
    rate = count / (time.perf_counter() - start)
    batches.close()
    source.close()
    return {"records": size, "open_s": open_s, "first_s": first_s, "rate": rate}


def measured(path: Path) -> dict[str, float]:
    """Return what ``read`` measures in a process of its own."""
    words = [sys.executable, __file__, "--read", str(path)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def shown(values: Sequence[float], form: str) -> str:
    """Return the median, and the least and largest value if there are several."""
    median = format(statistics.median(values), form)
    if len(values) == 1:
        return median
    return f"{median} ({min(values):{form}}, {max(values):{form}})"


def row(store: str, count: int, packs: list[Run], least: Run, reads: list[Any], size: int) -> str:
    wall = [max(0.001, run.wall_s - least.wall_s) for run in packs]
    cpu = [max(0.001, run.cpu_s - least.cpu_s) for run in packs]
    cells = [
        f"{store}, {count:,}",
        shown(wall, ".2f"),
        shown(cpu, ".2f"),
        shown([count / seconds / 1e6 for seconds in cpu], ".2f"),
        shown([run.peak_mb for run in packs], ".0f"),
        f"{size / count:.1f}",
        shown([1000 * result["open_s"] for result in reads], ".1f"),
        shown([1000 * result["first_s"] for result in reads], ".1f"),
        shown([result["rate"] / 1e6 for result in reads], ".2f"),
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| store, records | pack: s | CPU s | M rows/s per CPU s | memory: MB | bytes a record "
    "| open: ms | first batch: ms | read: M records/s |\n|" + " --- |" * 9
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--stores", nargs="+", choices=SUFFIXES, default=list(SUFFIXES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("outputs/bench/rows"))
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.read:
        print(json.dumps(read(options.read)))
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    array = options.work / "x.npy"
    make_array(array, SMALLEST)
    least = {store: pack(array, store) for store in options.stores}
    print(HEAD, flush=True)
    for count in options.counts:
        make_array(array, count)
        for store in options.stores:
            packs = [pack(array, store) for _ in range(options.repeats)]
            path = array.with_suffix(f".{SUFFIXES[store]}")
            reads = [measured(path) for _ in range(options.repeats)]
            print(row(store, count, packs, least[store], reads, path.stat().st_size), flush=True)
            path.unlink()
    array.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
