"""litdata, with its own format and loader.

``optimize`` writes chunks, StreamingDataset reads them in shuffled order, and StreamingDataLoader
collates.
"""

import os
from functools import partial
from typing import Any

import numpy as np
from litdata import StreamingDataLoader, StreamingDataset, optimize
from peers.pixels import decoded, random_crop
from peers.work import Epoch, Work
from torch import Tensor, from_numpy


class Images(StreamingDataset):
    """JPEGs of A and B, decoded and cropped."""

    antialias = True

    def __getitem__(self, index: Any) -> tuple[Tensor, int]:
        item = super().__getitem__(index)
        return random_crop(decoded(item["image"]), self.antialias), item["number"]


class Planes(StreamingDataset):
    """Raw pixels of D, stored as planes."""

    def __getitem__(self, index: Any) -> tuple[Tensor, int]:
        item = super().__getitem__(index)
        return from_numpy(np.frombuffer(item["image"], np.uint8).reshape(3, 32, 32).copy()), item[
            "number"
        ]


class Rows(StreamingDataset):
    """The records of R."""

    def __getitem__(self, index: Any) -> tuple[np.ndarray, int]:
        item = super().__getitem__(index)
        return item["values"], item["number"]


def jpeg(work: Work) -> Epoch:
    dataset = Images(work.path("litdata"), shuffle=True, drop_last=False)
    dataset.antialias = work.antialias
    return _epochs(dataset, work)


def small(work: Work) -> Epoch:
    return _epochs(Planes(work.path("litdata"), shuffle=True, drop_last=False), work)


def ragged(work: Work) -> Epoch:
    # Imported here, because the other contestants of this file must not pay for h5py.
    from peers.ragged import joined

    dataset = Rows(work.path("litdata"), shuffle=True, drop_last=False)
    return _epochs(dataset, work, collate_fn=joined)


def _epochs(dataset: StreamingDataset, work: Work, **options: Any) -> Epoch:
    loader = StreamingDataLoader(
        dataset,
        batch_size=work.batch_size,
        num_workers=work.num_workers,
        persistent_workers=True,
        **options,
    )
    return lambda _: iter(loader)


def file_item(path: str, numbers: dict[str, int]) -> dict[str, Any]:
    """Return a record of A or B: the bytes of an image file, and its number."""
    with open(path, "rb") as file:
        return {"image": file.read(), "number": numbers[path]}


def make_jpeg(work: Work) -> None:
    numbers = {path: number for number, path in enumerate(work.files())}
    optimize(
        partial(file_item, numbers=numbers),
        list(numbers),
        work.path("litdata"),
        chunk_bytes="64MB",
        num_workers=work.num_workers,
    )


def pixel_item(number: int, path: str) -> dict[str, Any]:
    """Return a record of D: the pixels of an image as planes, and its number."""
    image = np.load(path, mmap_mode="r")[number]
    return {"image": image.transpose(2, 0, 1).tobytes(), "number": number}


def make_small(work: Work) -> None:
    item = partial(pixel_item, path=os.path.abspath(work.path("raw.npy")))
    optimize(
        item,
        list(range(work.num_records)),
        work.path("litdata"),
        chunk_bytes="64MB",
        num_workers=work.num_workers,
    )


def ragged_item(number: int, folder: str, ends: list[int]) -> dict[str, Any]:
    """Return a record of R: its values, and its number."""
    values = np.load(os.path.join(folder, "values.npy"), mmap_mode="r")
    return {"values": np.array(values[ends[number] : ends[number + 1]]), "number": number}


def make_ragged(work: Work) -> None:
    ends = [0, *np.cumsum(np.load(work.path("lengths.npy"))).tolist()]
    optimize(
        partial(ragged_item, folder=os.path.abspath(work.folder), ends=ends),
        list(range(work.num_records)),
        work.path("litdata"),
        chunk_bytes="64MB",
        num_workers=work.num_workers,
    )
