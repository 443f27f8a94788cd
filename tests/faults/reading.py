"""Damage stores in many ways, and see that every wrong record is found: python -m tests.faults.reading [FLIPS] [CUTS] [SEED]

Each format, with image files and with raw fields: FLIPS single bits anywhere in the file, CUTS truncations to any length, each read in a
process of its own until one crashes. "refused": an error line; "found": the record is told as damaged; "right": the bit was no record's.
Anything else (a wrong record that nobody tells, another exception, a signal, a hang) is printed, and the exit code is 1.
"""

import os
import sys
import tempfile
import time
from collections import Counter

import numpy as np
import torch

from framework.contracts import Field
from framework.data.hdf5 import HDF5Store
from framework.data.lmdb import LMDBStore
from tests.conftest import FIELDS, make_records, write_store
from tests.contract.cases import plain
from tests.data.fuzz import flips, judge, truncations

COUNT = 300
FINE = ("refused", "found", "right")
IMAGES = {"image": Field("uint8", (3, None, None), "image"), "label": Field("int64", ())}
OPEN = {"h5": HDF5Store, "lmdb": LMDBStore}


def image_files() -> dict:
    """Byte strings of very different lengths: inside a page of LMDB, and over several."""
    draw = np.random.default_rng(0)
    return {"image": [draw.bytes(int(size)) for size in draw.integers(10, 9000, COUNT)], "label": np.arange(COUNT) % 3}


KINDS = {"raw": (make_records(COUNT), FIELDS), "images": (image_files(), IMAGES)}


def campaign(ending: str, kind: str, num_flips: int, num_cuts: int, seed: int) -> tuple[Counter, Counter]:
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


def main(num_flips: int, num_cuts: int, seed: int) -> int:
    """As many flips and truncations for each format, half of them with image files, half with raw fields."""
    bad = 0
    print(f"seed {seed}; reading.py: {num_flips} flips and {num_cuts} truncations a format")
    for ending in OPEN:
        for kind in KINDS:
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                found = campaign(ending, kind, num_flips // 2, num_cuts // 2, seed)
                os.chdir("/")
            for what, counts in zip(("flips", "truncations"), found, strict=True):
                words = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
                print(f"{ending:5} {kind:7} {what:12} {words}", flush=True)
                bad += sum(count for name, count in counts.items() if name not in FINE)
                bad += counts["right"] + counts["found"] if what == "truncations" else 0
            print(f"{'':13} {time.perf_counter() - start:.1f} s", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*[*given, *(1000, 200, 0)[len(given) :]]))
