import pickle
from pathlib import Path

import numpy as np
import pytest

from framework.data.decode import decode
from framework.errors import ConfigError, DataError
from framework.pack.folder import FolderInput
from tests.contract.cases import jpeg, write_folder


def _input(images, encode="keep", size=None, channels=None):
    return FolderInput(write_folder("in", images), encode, size, channels)


def test_kept_images_are_the_files_own_bytes():
    images = [jpeg(number, 10 + number, 20) for number in range(6)]
    records = _input(images).read(1, 4)
    assert records["image"] == images[1:4]
    assert records["label"].tolist() == [0, 1, 1]


def test_raw_images_are_pixels():
    records = _input([jpeg(0), jpeg(1), jpeg(2)], "raw").read(0, 3)
    assert records["image"].shape == (3, 3, 16, 12)
    assert np.array_equal(records["image"][1].transpose(1, 2, 0), decode(jpeg(1), 3))


def test_the_manifest_tells_what_will_be_read():
    source = _input([jpeg(0)] * 5, "raw", [6, 8])
    manifest = source.manifest
    assert manifest.fields["image"].shape == source.read(0, 1)["image"].shape[1:] == (3, 6, 8)
    assert (manifest.num_records, manifest.classes, manifest.class_counts) == (5, ["a", "b", "c"], [2, 2, 1])
    assert manifest.options == {"encode": "raw", "size": (6, 8), "channels": 3}


def test_images_of_different_sizes_are_scaled_to_one():
    records = _input([jpeg(0, 30, 20), jpeg(1, 8, 9), jpeg(2, 50, 50)], "raw", [10, 12]).read(0, 3)
    assert records["image"].shape == (3, 3, 10, 12)


def test_images_of_different_sizes_are_named_where_no_size_is_given():
    with pytest.raises(DataError, match=r"D107.*in/b/001\.jpg.*\(3, 8, 9\).*\(3, 30, 20\).*input\.size"):
        _input([jpeg(0, 30, 20), jpeg(1, 8, 9), jpeg(2)], "raw").read(0, 3)


def test_channels_can_be_chosen():
    source = _input([jpeg(0)] * 3, "raw", channels=1)
    assert source.read(0, 2)["image"].shape == (2, 1, 16, 12)
    assert source.manifest.fields["image"].shape[0] == 1


@pytest.mark.parametrize("encode", ["keep", "raw"])
@pytest.mark.parametrize("data", [b"just text", b"", jpeg(0)[:200]])
def test_a_bad_image_is_named_by_its_file(encode, data):
    source = _input([jpeg(0), data, jpeg(2)], encode)
    with pytest.raises(DataError, match=r"D106.*in/b/001\.jpg.*not a readable image"):
        source.read(0, 3)


def test_a_missing_folder_is_named():
    with pytest.raises(DataError, match=r"D101.*gone"):
        _ = FolderInput("gone", "keep", None, None).manifest


def test_an_empty_folder_is_named():
    Path("in").mkdir()
    with pytest.raises(DataError, match=r"D110.*in"):
        _ = FolderInput("in", "keep", None, None).manifest


def test_an_unknown_encoding_is_refused():
    with pytest.raises(ConfigError, match=r"C114.*input\.encode = jpeg"):
        FolderInput("in", "jpeg", None, None)


def test_a_size_for_kept_bytes_is_refused():
    with pytest.raises(ConfigError, match=r"C115.*input\.size = \[4, 4\]"):
        FolderInput("in", "keep", [4, 4], None)


def test_it_reads_the_same_in_another_process():
    source = _input([jpeg(number) for number in range(6)], "raw")
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy.read(2, 5)["image"], source.read(2, 5)["image"])
