import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from framework.errors import DataError
from framework.input.idx import IdxInput, read_idx
from framework.store import foreign

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
LABELS = np.array([3, 0, 9, 1, 1], np.uint8)


def _idx(array, kind=8):
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, kind, array.ndim]) + shape + array.tobytes()


def _write(name, data, zipped=False):
    Path(name).write_bytes(gzip.compress(data) if zipped else data)
    return name


def _input(images=IMAGES, labels=LABELS):
    return IdxInput(_write("images", _idx(images)), _write("labels", _idx(labels), zipped=True))


@pytest.mark.parametrize("zipped", [False, True])
def test_an_array_comes_back_zipped_or_not(zipped):
    assert np.array_equal(read_idx(_write("x", _idx(IMAGES), zipped)), IMAGES)


def test_a_zipped_file_that_expands_enormously_is_refused(monkeypatch):
    monkeypatch.setattr(foreign, "MOST_SMALL_BYTES", 1000)
    path = _write("x", _idx(np.zeros(1_000_000, np.uint8)), zipped=True)
    with pytest.raises(DataError, match=r"D113.*x: holds more than \d+ bytes.*gzip -d"):
        read_idx(path)


def test_images_and_labels_become_records():
    source = _input()
    records, keys = source.read(1, 4)
    assert list(keys) == ["1", "2", "3"]
    assert np.array_equal(records["image"], IMAGES[1:4, None])
    assert records["label"].tolist() == [0, 9, 1]
    assert records["label"].dtype == np.int64


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x00", b"\x00\x00\x08", b"just text, long enough", _idx(IMAGES, kind=13)),
        *(b"\x01" + _idx(IMAGES)[1:], b"\x00\x00\x08\xff" + bytes(9)),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_what_is_no_idx_file_of_bytes_is_named(data, zipped):
    with pytest.raises(DataError, match=r"D113.*x: not an IDX file"):
        read_idx(_write("x", data, zipped))


@pytest.mark.parametrize("data", [_idx(IMAGES)[:-1], _idx(IMAGES)[:20], _idx(IMAGES) + b"x"])
def test_a_file_of_another_length_than_it_says_is_named(data):
    with pytest.raises(DataError, match=r"D113.*x: truncated: \(5, 4, 3\) wants 60 bytes"):
        read_idx(_write("x", data))
