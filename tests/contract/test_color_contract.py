"""A set of images has colors if any of a sample has: a gray first image does not decide alone."""

import re

import h5py
import numpy as np
import pytest
import torch

from framework.data.reader import BatchReader, Request
from framework.errors import DataError
from framework.input import folder, function, hdf5, lmdb
from framework.media.decode import encode_png
from framework.store import folder_store, parquet_store, tar_store
from tests.conftest import make_context
from tests.contract.cases import jpeg, pixels, write_folder, write_parquet, write_tar
from tests.store.test_foreign import write_lmdb

GRAY = encode_png(pixels(0, channels=1).transpose(2, 0, 1))


def _tar(images):
    members = [(f"{number}.png", image) for number, image in enumerate(images)]
    return tar_store.TarStore(write_tar("x.tar", members), {"image": "png"})


def _parquet(images):
    records = {"image": images, "label": [0] * len(images)}
    return parquet_store.ParquetStore(write_parquet("x.parquet", records))


def _hdf5(images):
    with h5py.File("x.h5", "w", userblock_size=512) as file:
        for number, image in enumerate(images):
            file[f"{number}/image"] = np.frombuffer(image, np.uint8)
    return hdf5.HDF5Input("x.h5", {"image": "*/image"})


def _lmdb(images):
    values = {f"image-{number}": image for number, image in enumerate(images)}
    return lmdb.LMDBInput(write_lmdb("x.lmdb", values), {"image": "image-%d"})


def _function(images):
    # some items give no record
    def make(item):
        return [{"image": images[item // 2]}] if item % 2 else []

    return function.FunctionInput("make", make, None, 2 * len(images), None)


MAKE = {
    "folder": lambda images: folder_store.FolderStore(write_folder("in", images)),
    "tar": _tar,
    "parquet": _parquet,
    "input=folder": lambda images: folder.FolderInput(write_folder("in", images), None, None),
    "input=hdf5": _hdf5,
    "input=lmdb": _lmdb,
    "input=function": _function,
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize(
    ("images", "channels"),
    [([GRAY, jpeg(1), jpeg(2)], 3), ([GRAY, b"no image", jpeg(1)], 3), ([GRAY] * 40, 1)],
    ids=["colors", "broken", "gray"],
)
def test_one_gray_image_at_the_front_does_not_take_the_colors_of_all(make, images, channels):
    assert make(images).manifest.fields["image"].shape == (channels, None, None)


IN_COLOR, AS_COLOR = 4, 9  # of forty images, not in the sample
IN_GRAY_RGB = np.repeat(pixels(5, channels=1), 3, axis=2)


@pytest.mark.parametrize("kind", ["folder", "tar", "parquet"])
def test_among_gray_images_one_in_color_is_refused_and_gray_in_three_channels_is_read(kind):
    images = [GRAY] * 40
    images[IN_COLOR] = jpeg(1)
    images[AS_COLOR] = encode_png(IN_GRAY_RGB.transpose(2, 0, 1))
    store = MAKE[kind](images)
    read = BatchReader(store, make_context())
    image = read(Request(0, torch.tensor([0, AS_COLOR]), False))["image"]
    assert image.shape[1] == 1
    assert np.array_equal(image[1, 0], IN_GRAY_RGB[:, :, 0])
    with pytest.raises(DataError, match=re.escape(f"D122]: {store.name(IN_COLOR)}: an image in")):
        read(Request(0, torch.tensor([0, IN_COLOR]), False))
