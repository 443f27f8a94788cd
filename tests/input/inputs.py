"""Inputs for tests of packing. Their items are in memory; some fail or kill their process."""

import os
import signal
from pathlib import Path

import numpy as np

from framework.contracts.records import Chunk, Field, InputTraits, Manifest
from framework.errors import DataError
from framework.pack.packing import Packing
from framework.store import hdf5_store, lmdb_store

FIELDS = {
    "image": Field("uint8", (3, 16, 16)),
    "bytes": Field("uint8", (3, None, None), "image"),
    "label": Field("int64", ()),
}
FORMATS = {".h5": hdf5_store.HDF5Writer, ".lmdb": lmdb_store.LMDBWriter}
COUNT = 4000  # items of some 1.2 kB: five jobs


class Input(InputTraits):
    """An input of items in memory, some of which fail.

    Attributes:
        bad: Items that cannot be read.
        deadly: Items that kill the process that reads them.
        spared: The number of a process that is not killed.
    """

    def __init__(self, count=COUNT, bad=(), deadly=(), spared=0):
        self.bad, self.deadly, self.spared = set(bad), set(deadly), spared
        self.manifest = Manifest(count, FIELDS, ["a", "b", "c"], source="memory")

    def read(self, start, stop):
        items = np.arange(start, stop)
        if self.bad & set(items.tolist()):
            name = f"item {min(self.bad & set(items.tolist()))}"
            raise DataError(106, name, "not a readable image", "mend it")
        if self.deadly & set(items.tolist()) and os.getpid() != self.spared:
            os.kill(os.getpid(), signal.SIGKILL)
        images = (
            np.zeros((len(items), 3, 16, 16), np.uint8)
            + (items % 251).astype(np.uint8)[:, None, None, None]
        )
        files = [item.to_bytes(4, "big") * (90 + item % 21) for item in items.tolist()]
        return Chunk(
            {"image": images, "bytes": files, "label": items % 3}, [f"k{item}" for item in items]
        )

    def name(self, index):
        return f"item {index}"


def packing(path="x.h5", source=None, **options):
    """Return a Packing into the format of ``path``'s ending, a folder unless ``one_file``."""
    suffix = Path(path).suffix
    return Packing(source or Input(), FORMATS[suffix], path, suffix=suffix, **options)


def content(path):
    """Return the bytes of a file, or of every file in a folder by its relative name."""
    path = Path(path)
    return (
        path.read_bytes()
        if path.is_file()
        else {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*"))}
    )
