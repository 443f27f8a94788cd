"""Damage stores in many ways, and see that every wrong record is found.

Each format, with image files and with raw fields: single bits anywhere in the file, truncations to any length, each read in a
process of its own until one crashes. "refused": an error line; "found": the record is told as damaged; "right": the bit was no record's.
Anything else is a wrong record that nobody tells, another exception, a signal, a hang.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch

from framework.contracts.records import Field
from framework.store.hdf5_store import HDF5Store
from framework.store.lmdb_store import LMDBStore
from tests.conftest import FIELDS, make_records, write_store
from tests.contract.cases import plain
from tests.faults.lanes import Row
from tests.store.fuzz import flips, judge, truncations

COUNT = 300
FINE = ("refused", "found", "right")
IMAGES = {"image": Field("uint8", (3, None, None), "image"), "label": Field("int64", ())}
OPEN = {"h5": HDF5Store, "lmdb": LMDBStore}


def image_files() -> dict:
    """Byte strings of very different lengths: inside a page of LMDB, and over several."""
    draw = np.random.default_rng(0)
    return {
        "image": [draw.bytes(int(size)) for size in draw.integers(10, 9000, COUNT)],
        "label": np.arange(COUNT) % 3,
    }


KINDS = {"raw": (make_records(COUNT), FIELDS), "images": (image_files(), IMAGES)}


def campaign(
    ending: str, kind: str, num_flips: int, num_cuts: int, seed: int
) -> tuple[Counter, Counter]:
    """(verdicts of flips, verdicts of truncations)."""
    records, fields = KINDS[kind]
    path = write_store(f"whole.{ending}", records, fields)
    store = OPEN[ending](path)
    expected = plain(store.read(torch.arange(COUNT)))
    store.close()
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    flipped = judge(OPEN[ending], ending, flips(data, num_flips, seed=seed), expected, COUNT)
    cut = judge(OPEN[ending], ending, truncations(data, num_cuts, seed=seed), expected, COUNT)
    return Counter(flipped), Counter(cut)


def rows(flips_in_all: int, seed: int) -> Iterator[Row]:
    """Flips, and a twelfth as many truncations, over formats and kinds."""
    each = -(-flips_in_all // (len(OPEN) * len(KINDS)))
    for ending in OPEN:
        for kind in KINDS:
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                flipped, cut = campaign(ending, kind, each, -(-each // 12), seed)
                os.chdir("/")
            flipped_s = time.perf_counter() - start
            yield _row(
                f"bits of a store of {kind} (.{ending}) flipped", flipped, FINE, seed, flipped_s
            )
            yield _row(
                f"a store of {kind} (.{ending}) cut off: refused", cut, ("refused",), seed, 0.0
            )


def _row(fault: str, counts: Counter, fine: tuple[str, ...], seed: int, seconds: float) -> Row:
    wrong = [f"seed {seed}: {count} {name}" for name, count in counts.items() if name not in fine]
    return Row(
        fault,
        counts.total(),
        wrong,
        seconds,
        ", ".join(f"{count} {name}" for name, count in sorted(counts.items())),
    )
