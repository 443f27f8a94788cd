"""torch's DataLoader over image files.

Images are decoded and scaled by Pillow, as most people do at first, or by simplejpeg and OpenCV.
"""

import random
from typing import Any

import numpy as np
import torch
from peers.work import FLIP, SIZE, Epoch, Work, random_window
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Pillow(Dataset[Any]):
    """A Dataset of image files, scaled by Pillow's bilinear, which averages when it shrinks.

    With ``keyed``, each item has a generator of its own, so that threads may read items.
    """

    def __init__(self, files: list[str], keyed: bool = False) -> None:
        self.files = files
        self.keyed = keyed

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        with Image.open(self.files[number]) as file:
            image = file.convert("RGB")
        rng: Any = random.Random(number) if self.keyed else random
        top, left, height, width = random_window(image.height, image.width, rng)
        image = image.resize(
            (SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
        )
        if rng.random() < FLIP:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), number


class SimpleJpeg(Dataset[Any]):
    """A Dataset of image files, decoded by simplejpeg and scaled by OpenCV."""

    def __init__(self, files: list[str], antialias: bool) -> None:
        self.files, self.antialias = files, antialias

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        # Imported here, because the row with Pillow must not pay for OpenCV.
        from peers.pixels import decoded, random_crop

        with open(self.files[number], "rb") as file:
            return random_crop(decoded(file.read()), self.antialias), number


def batches(dataset: Dataset[Any], work: Work, loader: type[DataLoader[Any]] = DataLoader) -> Epoch:
    """Return the epochs of a usual DataLoader.

    It shuffles, keeps the last batch, and keeps its workers between epochs. They collate into
    shared memory.
    """
    made = loader(
        dataset,
        work.batch_size,
        shuffle=True,
        num_workers=work.num_workers,
        persistent_workers=True,
    )
    return lambda _: iter(made)


def pillow(work: Work) -> Epoch:
    return batches(Pillow(work.files()), work)


def simplejpeg(work: Work) -> Epoch:
    return batches(SimpleJpeg(work.files(), work.antialias), work)


def prefetch_generator(work: Work) -> Epoch:
    """Return the epochs of a DataLoader in a BackgroundGenerator.

    The readme of prefetch_generator advises this.
    """
    from prefetch_generator import BackgroundGenerator

    class DataLoaderX(DataLoader[Any]):
        def __iter__(self) -> Any:
            return BackgroundGenerator(super().__iter__())

    return batches(SimpleJpeg(work.files(), work.antialias), work, DataLoaderX)
