from pathlib import Path

import numpy as np
import pytest
from paceline_examples.blurred_pairs import blurred

from framework.errors import DataError
from framework.media.decode import decode
from tests.contract.cases import jpeg


def _pairs(split="train", size=8, val_every=2, count=20):
    paths = [f"{number}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        Path(path).write_bytes(jpeg(number))
    return {path: list(blurred(path, split, val_every, size, 1.5)) for path in paths}


def test_every_file_is_in_one_split_and_one_only():
    train, val = _pairs("train"), _pairs("val")
    assert all(len(train[path]) + len(val[path]) == 1 for path in train)
    assert 0 < sum(map(len, val.values())) < 20


def test_a_pair_is_the_middle_of_the_image_and_that_blurred():
    path, pairs = next((path, pairs) for path, pairs in _pairs().items() if pairs)
    sharp, blurry = pairs[0]["sharp"], pairs[0]["blurry"]
    assert np.array_equal(sharp, decode(Path(path).read_bytes(), 3)[4:12, 2:10].transpose(2, 0, 1))
    assert (blurry.shape, blurry.dtype, blurry.flags.c_contiguous) == ((3, 8, 8), np.uint8, True)
    assert np.abs(np.diff(blurry.astype(int))).sum() < np.abs(np.diff(sharp.astype(int))).sum()


def test_images_that_are_too_small_give_nothing():
    assert not any(_pairs(size=13).values())


def test_a_bad_image_is_named():
    Path("x.jpg").write_bytes(b"text")
    with pytest.raises(DataError, match=r"D106.*x\.jpg"):
        list(blurred("x.jpg", "train", 10**9, 8, 1.5))
