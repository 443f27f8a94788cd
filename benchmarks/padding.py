"""Measure how much of padded batches is padding, with and without ``order=buckets``.

    python benchmarks/padding.py [--records 20000] [--batch-size 32] [--sigma 0.28]

Utterances have lognormal lengths: a median of 4 s in frames of 10 ms, whose logarithms have the
standard deviation ``sigma``. With 0.28, about 40 % of plain batches of 32 is padding. They are
packed, read and padded as in training. Each row counts the padding of one epoch and its batches.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from framework.contracts.data import SourceContext
from framework.contracts.records import Field, Manifest
from framework.data.hdf5 import hdf5_source
from framework.order.batches import Order, OrderChoice
from framework.order.buckets import BucketOrder
from framework.store.hdf5_store import HDF5Writer
from framework.transform.none import NoTransform

MEDIAN_FRAMES = 400
MAX_VALUES = 16_000  # frames of a batch, padding included
WIDTHS = (0.04, 0.08, 0.16)


def pack(path: str, num_records: int, sigma: float) -> None:
    """Write records of one byte per frame."""
    rng = np.random.default_rng(0)
    lengths = (MEDIAN_FRAMES * np.exp(sigma * rng.standard_normal(num_records))).astype(int)
    fields = {"speech": Field("uint8", (None,))}
    writer = HDF5Writer(path, fields=fields, num_records=num_records)
    speech = [np.ones(length, np.uint8) for length in lengths]
    writer.write({"speech": speech}, [str(number) for number in range(num_records)])
    writer.close(Manifest(num_records, fields))


def padding_of(path: str, batch_size: int, choice: OrderChoice | None) -> tuple[float, int]:
    """Return the share of padding in an epoch, and the number of batches."""
    context = SourceContext(
        order=lambda count: Order(count, batch_size, shuffle=True),
        transform=NoTransform(),
        order_choice=choice,
    )
    source = hdf5_source(path, context=context)
    num_batches = sum(1 for _ in source.batches(0))
    padding, whole = source.content()["padding"]
    source.close()
    return padding / whole, num_batches


def main() -> None:
    """Print a row per order."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--sigma", type=float, default=0.28)
    options = parser.parse_args()
    orders: dict[str, tuple[int, OrderChoice | None]] = {
        "order=full": (options.batch_size, None),
        **{
            f"order=buckets order.width={width}": (
                options.batch_size,
                BucketOrder(None, None, width),
            )
            for width in WIDTHS
        },
        f"order=buckets order.max_values={MAX_VALUES}": (
            options.records,
            BucketOrder(None, MAX_VALUES, 0.08),
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "speech.h5")
        pack(path, options.records, options.sigma)
        for name, (batch_size, choice) in orders.items():
            share, num_batches = padding_of(path, batch_size, choice)
            print(f"{name:38} {share:6.1%} padding {num_batches:6,} batches")


if __name__ == "__main__":
    main()
