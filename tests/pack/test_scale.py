import numpy as np
import pytest

from framework.pack.scale import scaled

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 4, 6), np.uint8)


def test_without_a_size_only_the_channel_is_added():
    assert np.array_equal(scaled(IMAGES, None), IMAGES[:, None])


@pytest.mark.parametrize("size", [[8, 12], [2, 3], [4, 6], [1, 9]])
def test_every_image_gets_the_asked_height_and_width(size):
    found = scaled(IMAGES, size)
    assert found.shape == (3, 1, *size)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous


def test_the_same_size_changes_nothing():
    assert np.array_equal(scaled(IMAGES, [4, 6]), IMAGES[:, None])


def test_an_even_image_stays_even():
    assert set(scaled(np.full((2, 5, 5), 77, np.uint8), [9, 3]).flatten().tolist()) == {77}
