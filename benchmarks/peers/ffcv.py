"""ffcv, which reads its own file format with compiled code in threads.

It scales by area. As for every contestant, batches are contiguous NCHW.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from ffcv.fields import IntField, NDArrayField, RGBImageField
from ffcv.fields.decoders import (
    IntDecoder,
    NDArrayDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import (
    NormalizeImage,
    RandomHorizontalFlip,
    RandomTranslate,
    ToTensor,
    ToTorchImage,
)
from ffcv.writer import DatasetWriter
from peers.pixels import decoded
from peers.work import FLIP, MEAN, PADDING, RATIO, SCALE, SIZE, STD, Epoch, Work


def images(work: Work) -> Epoch:
    """Return epochs of A, B or C that read the file of `make_jpeg` or `make_raw`."""
    return _random_crops("images.beton", work)


def images_400(work: Work) -> Epoch:
    """Return epochs of C that read the larger images of `make_raw_400`."""
    return _random_crops("images-400.beton", work)


def _random_crops(name: str, work: Work) -> Epoch:
    crop = RandomResizedCropRGBImageDecoder((SIZE, SIZE), SCALE, RATIO)
    return _epochs(
        name,
        [crop, RandomHorizontalFlip(FLIP), ToTensor(), ToTorchImage(channels_last=False)],
        work,
    )


def small(work: Work) -> Epoch:
    """Return epochs of D that read the file of `make_small`."""
    return _epochs("small.beton", [NDArrayDecoder(), ToTensor()], work)


def small_augmented(work: Work) -> Epoch:
    """Return epochs of E that read the file of `make_small_images`.

    Images are flipped, translated and normalized.
    """
    mean, std = 255 * np.array(MEAN), 255 * np.array(STD)
    change = [
        RandomHorizontalFlip(FLIP),
        RandomTranslate(PADDING),
        NormalizeImage(mean, std, np.float32),
    ]
    steps = [
        SimpleRGBImageDecoder(),
        *change,
        ToTensor(),
        ToTorchImage(channels_last=False, convert_back_int16=False),
    ]
    return _epochs("small-images.beton", steps, work)


def _epochs(name: str, steps: list[Any], work: Work) -> Epoch:
    loader = Loader(
        work.path(name),
        batch_size=work.batch_size,
        num_workers=work.num_workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": steps, "number": [IntDecoder(), ToTensor()]},
    )

    return lambda _: iter(loader)


class Files:
    """The decoded image files, as ffcv's writer reads them: (uint8 [H, W, 3], number)."""

    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        with open(self.files[number], "rb") as file:
            return decoded(file.read()), number


class Pixels:
    """The images of raw.npy, as ffcv's writer reads them: (uint8, number).

    An image is [H, W, 3], or [3, H, W] with ``planes``.
    """

    def __init__(self, path: str, planes: bool = False) -> None:
        self.pixels, self.planes = np.load(path, mmap_mode="r"), planes

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        image = self.pixels[number]
        return np.ascontiguousarray(image.transpose(2, 0, 1) if self.planes else image), number


def _write(work: Work, name: str, field: Any, source: Any) -> None:
    writer = DatasetWriter(work.path(name), {"image": field, "number": IntField()}, num_workers=1)
    writer.from_indexed_dataset(source)


def make_jpeg(work: Work) -> None:
    """Write the images of A or B as JPEGs.

    ffcv takes pixels, not files, so it encodes them again, at quality 90.
    """
    _write(work, "images.beton", RGBImageField("jpg", jpeg_quality=90), Files(work.files()))


def make_raw(work: Work) -> None:
    """Write the raw pixels of C."""
    _write(work, "images.beton", RGBImageField("raw"), Pixels(work.path("raw.npy")))


def make_raw_400(work: Work) -> None:
    """Write raw pixels for C from the full-size files, with a longer side of at most 400.

    ffcv's own ImageNet recipe stores this size.
    """
    full = replace(work, folder=work.path("full-size"))
    _write(work, "images-400.beton", RGBImageField("raw", max_resolution=400), Files(full.files()))


def make_small(work: Work) -> None:
    """Write the images of D as arrays of planes."""
    _write(
        work,
        "small.beton",
        NDArrayField(np.dtype("u1"), (3, 32, 32)),
        Pixels(work.path("raw.npy"), planes=True),
    )


def make_small_images(work: Work) -> None:
    """Write the images of E as raw images."""
    _write(work, "small-images.beton", RGBImageField("raw"), Pixels(work.path("raw.npy")))
