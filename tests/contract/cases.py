"""One of each implementation over small real files: what the contract suites, and some tests of modules, run on."""

import os
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch

from framework.contracts import Field, Source
from framework.data.dali import dali_source
from framework.data.folder import FolderStore, folder_source
from framework.data.hdf5 import HDF5Store, hdf5_source
from framework.data.lmdb import LMDBStore, lmdb_source
from framework.data.synthetic import SyntheticSource
from tests.conftest import FIELDS, make_context, make_records, write_store

IMAGE_FIELDS = {"image": Field("uint8", (3, None, None), "image"), "label": Field("int64", ())}
STORES = ("hdf5", "lmdb", "hdf5_images", "lmdb_images", "folder")
SOURCES = ("hdf5", "lmdb", "folder", "dali", "synthetic")
READERS = ("hdf5", "lmdb", "folder", "dali")  # sources that read files
WAYS = [(0, "thread"), (2, "thread"), (2, "process")]  # of reading: how many workers, of which kind
TAKEN = {"dali": WAYS[:2], "synthetic": WAYS[:1]}  # by sources that take not all of them
KINDS_AND_WAYS = [(kind, *way) for kind in SOURCES for way in TAKEN.get(kind, WAYS)]


def pixels(seed: int, height: int = 16, width: int = 12, channels: int = 3) -> np.ndarray:
    """A smooth picture, uint8 [height, width, channels]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, channels), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR).reshape(height, width, channels)


def jpeg(seed: int, height: int = 16, width: int = 12) -> bytes:
    return simplejpeg.encode_jpeg(pixels(seed, height, width), quality=95)


def write_folder(path: str, images: list[bytes]) -> str:
    """``images`` as .jpg files in three classes, so that file ``i`` is image ``i``. Returns the absolute path."""
    for number, data in enumerate(images):
        file = Path(path, "abc"[number * 3 // len(images)], f"{number:03d}.jpg")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return os.path.abspath(path)


def write_case(kind: str, count: int) -> tuple[str, dict]:
    """(path, records) of a store of this kind, in the current directory."""
    if kind == "folder":
        images = [jpeg(number) for number in range(count)]
        labels = np.array([number * 3 // count for number in range(count)])
        return write_folder("images", images), {"image": images, "label": labels}
    records = make_records(count)
    fields = FIELDS
    if kind.endswith("images"):
        records["image"] = [jpeg(number) for number in range(count)]
        fields = IMAGE_FIELDS
    suffix = "h5" if kind.startswith("hdf5") else "lmdb"
    return write_store(os.path.abspath(f"{kind}.{suffix}"), records, fields), records


def open_case(kind: str, path: str):
    """A RecordStore of this kind."""
    return {"hdf5": HDF5Store, "lmdb": LMDBStore, "folder": FolderStore}[kind.partition("_")[0]](path)


def make_store(kind: str, count: int = 7):
    """(store, records)."""
    path, records = write_case(kind, count)
    return open_case(kind, path), records


def make_source(kind: str, count: int = 10, **options) -> Source:
    """A Source over ``count`` records; ``options`` as in ``make_context``."""
    context = make_context(**options)
    if kind == "synthetic":
        return SyntheticSource("train", (3, 4, 4), 3, count, context=context)
    if kind == "dali":
        return dali_source(write_case("hdf5", count)[0], 2, context=context)
    make = {"hdf5": hdf5_source, "lmdb": lmdb_source, "folder": folder_source}[kind.partition("_")[0]]
    return make(write_case(kind, count)[0], context=context)


def plain(records) -> dict[str, list]:
    """Records or a batch as lists, to be compared."""
    return {
        name: values.tolist() if isinstance(values, torch.Tensor | np.ndarray) else [bytes(value) for value in values]
        for name, values in records.items()
    }


def rows(records, indices) -> dict[str, list]:
    """What ``read(indices)`` is to return, as lists."""
    return {name: [values[index] for index in indices] for name, values in plain(records).items()}


def micros(source, epoch: int = 0, start: int = 0) -> list:
    """An epoch as lists, to be compared."""
    return [(plain(batch), weight, last) for batch, weight, last in source.batches(epoch, start)]


def shares(order, epoch: int = 0, start: int = 0) -> list:
    """What the order says of an epoch, as lists."""
    return [(share.indices.tolist(), share.weight, share.last) for share in order.shares(epoch, start)]


def child_read(stores: list, queue) -> None:
    """In a child process: read through the parent's stores, and through new ones."""
    indices = torch.tensor([2, 0, 2])
    for kind, store in stores:
        queue.put((plain(store.read(indices)), plain(open_case(kind, store.path).read(indices))))


def encoded_records(count: int) -> dict:
    """Records with image files instead of pixels."""
    return {"image": [jpeg(number) for number in range(count)], "label": np.arange(count) % 3}
