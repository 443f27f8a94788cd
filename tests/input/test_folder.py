import os
from pathlib import Path

import pytest

from framework.errors import DataError
from framework.input.folder import FolderInput
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


def test_given_classes_number_a_validation_folder_as_the_training_folder():
    _write("val/dog/1.jpg")
    source = FolderInput("val", ["cat", "cow", "dog"], None)
    assert source.manifest.classes == ["cat", "cow", "dog"]
    assert source.read(0, 1).records["label"].tolist() == [2]


def test_a_pattern_finds_classes_without_subfolders():
    _write("in/n02_dog.JPEG", "in/n01_cat.JPEG", "in/deep/n02_wolf.JPEG")
    source = FolderInput("in", None, r"(?:^|/)(n\d+)_")
    assert source.manifest.classes == ["n01", "n02"]
    assert source.read(0, 3).keys == ["n01_cat.JPEG", "deep/n02_wolf.JPEG", "n02_dog.JPEG"]
    assert source.read(0, 3).records["label"].tolist() == [0, 1, 1]


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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named():
    _write("in/a/1.jpg")
    Path("in/a").chmod(0)
    with pytest.raises(DataError, match=r"D101.*in/a.*Permission"):
        _ = FolderInput("in", None, None).manifest
