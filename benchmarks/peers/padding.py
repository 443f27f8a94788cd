"""Measure how much of padded batches is padding: ``python -m peers.padding RECORDS``.

This is workload S: the same records are read with and without buckets. Their lengths are like those
of read speech: log-normal with a median of 5 seconds, at most 30 seconds, 100 frames a second. The
result is printed as JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers.ours import SEED, part

from framework.contracts.data import SourceContext
from framework.contracts.records import Field, Manifest
from framework.data.hdf5 import hdf5_source
from framework.order.batches import Order
from framework.store.hdf5_store import HDF5Writer

BATCH_SIZE, FRAME_VALUES = 64, 4
MEDIAN, SPREAD, LONGEST = 500, 0.25, 3000  # frames
ORDERS: dict[str, dict[str, Any]] = {
    "order=full": {},
    "order=buckets": {"max_values": None},
    "order=buckets order.max_values=32000": {"max_values": 32_000},
}


def lengths(count: int) -> np.ndarray:
    """Return the lengths of ``count`` records, in frames: int64 [count]."""
    draws = np.random.default_rng(SEED).lognormal(np.log(MEDIAN), SPREAD, count)
    return draws.clip(1, LONGEST).astype(np.int64)


def write(path: str, count: int) -> None:
    """Write a store of ``count`` records."""
    field = Field("float32", (None, FRAME_VALUES))
    writer = HDF5Writer(path, fields={"speech": field}, num_records=count)
    arrays = [np.ones((length, FRAME_VALUES), np.float32) for length in lengths(count).tolist()]
    writer.write({"speech": arrays}, [f"{number:06}" for number in range(count)])
    writer.close(Manifest(count, {"speech": field}, source="benchmarks/data.py"))


def measured(path: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Read an epoch, and return its share of padding, its records and their rate."""

    def order(num_records: int) -> Order:
        return Order(num_records, batch_size=BATCH_SIZE, seed=SEED, shuffle=True)

    choice = part("order", "buckets", **options) if options else None
    context = SourceContext(order, part("transform", "none"), seed=SEED, order_choice=choice)
    source = hdf5_source(path, context=context)
    start = time.perf_counter()
    count = sum(len(batch["index"]) for batch, *_ in source.batches(0))
    seconds = time.perf_counter() - start
    padding, whole = source.content()["padding"]
    source.close()
    return {"order": name, "padding": padding / whole, "records": count, "rate": count / seconds}


def main() -> None:
    count = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "speech.h5"))
        write(path, count)
        rows = [measured(path, name, options) for name, options in ORDERS.items()]
    print(json.dumps({"records": count, "rows": rows}))


if __name__ == "__main__":
    main()
