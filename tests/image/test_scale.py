import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from framework.image.scale import before_turn, scale, scale_into, scaled_image
from tests.contract.cases import pixels


@settings(max_examples=60)
@given(
    st.integers(2, 150),
    st.integers(2, 150),
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from([1, 3]),
)
def test_shrinking_is_pillows_bilinear_within_a_level(height, width, high, wide, channels):
    high, wide = min(high, height), min(wide, width)
    image = np.random.default_rng(height).integers(0, 256, (height, width, channels), np.uint8)
    expected = [
        Image.fromarray(image[:, :, c]).resize((wide, high), Image.Resampling.BILINEAR)
        for c in range(channels)
    ]
    scaled = scale(image, (high, wide), antialias=True)
    assert scaled.shape == (high, wide, channels)
    assert (
        np.abs(
            scaled.astype(int) - np.stack([np.asarray(plane) for plane in expected], axis=2)
        ).max()
        <= 1
    )


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [(20, 30), (60, 80), (20, 80), (40, 50)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_view_is_scaled_as_its_copy_is(antialias, size, channels):
    view = pixels(1, 90, 120, channels)[10:50, 20:70]
    assert np.array_equal(
        scale(view, size, antialias), scale(np.ascontiguousarray(view), size, antialias)
    )


def test_an_image_of_its_size_is_itself():
    image = pixels(1, 20, 30)
    assert scale(image, (20, 30), antialias=True) is image


def test_without_antialias_shrinking_takes_the_nearest_four():
    image = np.zeros((80, 80, 1), np.uint8)
    image[::8] = 255
    assert len(np.unique(scale(image, (10, 10), antialias=False))) == 1
    assert 20 < int(scale(image, (10, 10), antialias=True).mean()) < 45


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [None, (20, 30), (60, 80), (20, 80), (40, 50)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("flip", range(4))
def test_scaling_into_a_batch_is_scaling_then_flipping(
    interleaved, antialias, size, channels, flip
):
    view = pixels(1, 90, 120, channels)[10:50, 20:70]
    expected = view if size is None else scale(view, size, antialias)
    expected = expected[:: -1 if flip & 2 else 1, :: -1 if flip & 1 else 1].transpose(2, 0, 1)
    out = np.full(expected.shape, 7, np.uint8)
    scale_into(
        view if interleaved else np.ascontiguousarray(view.transpose(2, 0, 1)),
        interleaved,
        size,
        antialias,
        flip,
        out,
    )
    assert np.abs(out.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("size", [None, (5, 7), (12, 10), (30, 41), (5, 30)])
def test_an_image_alone_has_the_pixels_that_a_batch_has(channels, interleaved, labels, size):
    """Of every flip, from a window of a larger image, and in memory of its own."""
    shape = (20, 18, channels) if interleaved else (channels, 20, 18)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    window = pixels[4:16, 3:13] if interleaved else pixels[:, 4:16, 3:13]
    before = pixels.copy()
    for flip in range(8):
        height_width = size or before_turn(flip, (12, 10))
        expected = np.empty((channels, *height_width), np.uint8)
        scale_into(window, interleaved, size, True, flip, expected, labels)
        image = scaled_image(window, interleaved, size, True, flip, labels)
        assert image.flags.c_contiguous
        assert np.array_equal(image.transpose(2, 0, 1), expected)
        image += 1
        assert np.array_equal(pixels, before)
