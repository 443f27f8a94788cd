"""HDF5 and LMDB as tutorials read them.

A Dataset opens the file in the worker and reads one item at a time.
"""

from typing import Any

import h5py
import lmdb
import numpy as np
import torch
from peers.pixels import decoded, random_crop
from peers.torch_loader import batches
from peers.work import Epoch, Work
from torch import Tensor
from torch.utils.data import Dataset


class HDF5Items(Dataset[Any]):
    """A Dataset of the HDF5 dataset ``x``.

    ``x`` has JPEG files of variable length or pixels [N, H, W, 3], which are cropped at random.
    With ``crop=False``, it has pixels that are returned as they are.
    """

    def __init__(self, path: str, work: Work, crop: bool = True) -> None:
        self.path, self.work, self.crop = path, work, crop
        self.file: Any = None

    def __len__(self) -> int:
        return self.work.num_records

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        value = self.file["x"][number]
        if not self.crop:
            return torch.tensor(value), number
        return random_crop(
            decoded(value) if value.ndim == 1 else value, self.work.antialias
        ), number


class LMDBItems(Dataset[Any]):
    """A Dataset of an LMDB file with a value per record.

    A value is a JPEG file or, if ``shape`` is given, the bytes of pixels in that shape. Images are
    cropped at random. With ``crop=False``, pixels are returned as they are.
    """

    def __init__(
        self, path: str, work: Work, shape: tuple[int, ...] | None, crop: bool = True
    ) -> None:
        self.path, self.work, self.shape, self.crop = path, work, shape, crop
        self.environment: Any = None

    def __len__(self) -> int:
        return self.work.num_records

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if self.environment is None:
            self.environment = lmdb.open(
                self.path, readonly=True, lock=False, readahead=False, meminit=False
            )
        with self.environment.begin() as transaction:
            value = transaction.get(b"%08d" % number)
        if self.shape is None:
            return random_crop(decoded(value), self.work.antialias), number
        pixels = np.frombuffer(value, np.uint8).reshape(self.shape)
        return (
            random_crop(pixels, self.work.antialias) if self.crop else torch.tensor(pixels)
        ), number


def hdf5_jpeg(work: Work) -> Epoch:
    return batches(HDF5Items(work.path("textbook-jpeg.h5"), work), work)


def hdf5(work: Work) -> Epoch:
    return batches(HDF5Items(work.path("textbook.h5"), work), work)


def hdf5_chunked(work: Work) -> Epoch:
    return batches(HDF5Items(work.path("textbook-chunked.h5"), work), work)


def hdf5_plain(work: Work) -> Epoch:
    """Return epochs of D whose pixels are stored as [N, 3, 32, 32].

    Nothing is done to them.
    """
    return batches(HDF5Items(work.path("planes.h5"), work, crop=False), work)


def lmdb_jpeg(work: Work) -> Epoch:
    return batches(LMDBItems(work.path("textbook-jpeg.lmdb"), work, None), work)


def lmdb_raw(work: Work) -> Epoch:
    return batches(LMDBItems(work.path("textbook.lmdb"), work, (256, 256, 3)), work)


def lmdb_plain(work: Work) -> Epoch:
    return batches(LMDBItems(work.path("planes.lmdb"), work, (3, 32, 32), crop=False), work)


def make_hdf5_jpeg(work: Work) -> None:
    with h5py.File(work.path("textbook-jpeg.h5"), "w") as file:
        dataset = file.create_dataset("x", (work.num_records,), h5py.vlen_dtype(np.uint8))
        for number, path in enumerate(work.files()):
            dataset[number] = np.fromfile(path, np.uint8)


def make_hdf5(work: Work) -> None:
    _make_hdf5(work.path("textbook.h5"), np.load(work.path("raw.npy"), mmap_mode="r"))


def make_hdf5_chunked(work: Work) -> None:
    _make_hdf5(
        work.path("textbook-chunked.h5"), np.load(work.path("raw.npy"), mmap_mode="r"), chunks=True
    )


def make_hdf5_plain(work: Work) -> None:
    _make_hdf5(work.path("planes.h5"), planes(work))


def _make_hdf5(path: str, pixels: np.ndarray, chunks: bool | None = None) -> None:
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", pixels.shape, np.uint8, chunks=chunks)
        for start in range(0, len(pixels), 256):
            dataset[start : start + 256] = pixels[start : start + 256]


def planes(work: Work) -> np.ndarray:
    """Return the pixels of D in the layout of a batch: uint8 [N, 3, 32, 32]."""
    return np.ascontiguousarray(np.load(work.path("raw.npy")).transpose(0, 3, 1, 2))


def make_lmdb_jpeg(work: Work) -> None:
    _make_lmdb(
        work.path("textbook-jpeg.lmdb"), (np.fromfile(path, np.uint8) for path in work.files())
    )


def make_lmdb_raw(work: Work) -> None:
    _make_lmdb(work.path("textbook.lmdb"), np.load(work.path("raw.npy"), mmap_mode="r"))


def make_lmdb_plain(work: Work) -> None:
    _make_lmdb(work.path("planes.lmdb"), planes(work))


def _make_lmdb(path: str, values: Any) -> None:
    with (
        lmdb.open(path, map_size=1 << 34) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, value in enumerate(values):
            transaction.put(b"%08d" % number, value.tobytes())
