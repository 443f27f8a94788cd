import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from framework.errors import DataError
from framework.image.decode import decode
from framework.input.folder import FolderInput
from framework.store.folder_store import FolderStore
from tests.contract.cases import jpeg, write_folder


def _input(images, classes=None, label_pattern=None):
    return FolderInput(write_folder("in", images), classes, label_pattern)


def _write(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        with open(name, "wb") as file:
            file.write(jpeg(0))


def test_images_are_the_files_own_bytes_under_their_relative_paths():
    images = [jpeg(number, 10 + number, 20) for number in range(6)]
    records, keys = _input(images).read(1, 4)
    assert records["image"] == images[1:4]
    assert records["label"].tolist() == [0, 1, 1]
    assert keys == ["a/001.jpg", "b/002.jpg", "b/003.jpg"]


def test_the_order_is_that_of_the_folder_read_in_training():
    _write("in/a/2.jpg", "in/a-b/1.jpg", "in/a/x/1.jpg", "in/B/1.png")
    Path("in/empty").mkdir()
    store = FolderStore("in")
    source = FolderInput("in", None, None)
    assert source.read(0, 4).keys == store.files
    assert source.read(0, 4).records["label"].tolist() == store.labels.tolist()
    assert source.manifest.classes == store.manifest.classes == ["B", "a", "a-b", "empty"]


def test_given_classes_number_a_validation_folder_as_the_training_folder():
    _write("val/dog/1.jpg")
    source = FolderInput("val", ["cat", "cow", "dog"], None)
    assert source.manifest.classes == ["cat", "cow", "dog"]
    assert source.read(0, 1).records["label"].tolist() == [2]


def test_a_folder_that_the_given_classes_lack_is_named():
    with pytest.raises(DataError, match=r"D161.*1 classes are not in input\.classes: b"):
        _ = _input([jpeg(0)] * 5, ["a", "c"]).manifest


def test_a_pattern_finds_classes_without_subfolders():
    _write("in/n02_dog.JPEG", "in/n01_cat.JPEG", "in/deep/n02_wolf.JPEG")
    source = FolderInput("in", None, r"(?:^|/)(n\d+)_")
    assert source.manifest.classes == ["n01", "n02"]
    assert source.read(0, 3).keys == ["n01_cat.JPEG", "deep/n02_wolf.JPEG", "n02_dog.JPEG"]
    assert source.read(0, 3).records["label"].tolist() == [0, 1, 1]


def test_a_file_without_a_class_is_named():
    _write("in/dog.jpg")
    with pytest.raises(DataError, match=r"D162.*in/dog\.jpg"):
        _ = FolderInput("in", None, r"^(n\d+)_").manifest


def test_what_is_left_out_is_reported():
    _write("in/a/1.jpg", "in/loose.jpg")
    os.symlink("1.jpg", "in/a/2.jpg")
    os.mkfifo("in/a/3.jpg")
    source = FolderInput("in", None, None)
    manifest = source.manifest
    assert manifest.num_records == 1
    assert source.notes[-1] == "in: left out: 1 image in no subfolder"
    assert (
        manifest.source
        == "folder in (2 links and special files left out) (1 images in no subfolder left out)"
    )


def test_every_kind_of_image_that_can_be_read_is_taken():
    picture = Image.fromarray(np.full((8, 8, 3), 90, np.uint8))
    kinds = {"jfif": "jpeg", "jpeg": "jpeg", "gif": "gif", "png": "png", "bmp": "bmp"}
    kinds |= {"webp": "webp", "tif": "tiff", "tiff": "tiff"}
    Path("in/a").mkdir(parents=True)
    for ending, kind in kinds.items():
        picture.save(f"in/a/1.{ending}", kind)
    source = FolderInput("in", None, None)
    assert source.manifest.num_records == len(kinds)
    images = source.read(0, len(kinds)).records["image"]
    assert all(abs(int(decode(image, 3).mean()) - 90) <= 1 for image in images)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named():
    _write("in/a/1.jpg")
    Path("in/a").chmod(0)
    with pytest.raises(DataError, match=r"D101.*in/a.*Permission"):
        _ = FolderInput("in", None, None).manifest
