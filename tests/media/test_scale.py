import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN
from framework.media import scale as scaling
from framework.media.scale import scale, scale_into
from tests.contract.cases import pixels

SIDES = st.integers(1, 60)


@given(st.integers(2, 150), st.integers(2, 150), SIDES, SIDES, st.sampled_from([1, 3]))
def test_shrinking_is_pillows_bilinear_within_a_level(height, width, high, wide, channels):
    high, wide = min(high, height), min(wide, width)
    image = np.random.default_rng(height).integers(0, 256, (height, width, channels), np.uint8)
    planes = [Image.fromarray(image[:, :, channel]) for channel in range(channels)]
    expected = np.stack(
        [np.asarray(plane.resize((wide, high), Image.Resampling.BILINEAR)) for plane in planes], 2
    )
    assert np.abs(scale(image, (high, wide), antialias=True).astype(int) - expected).max() <= 1


LAYOUTS = {
    "neighbors of four channels": lambda image: image[..., :3],
    "channels backwards": lambda image: image[..., 2::-1],
    "one channel of several": lambda image: image[..., 1:2],
    "columns backwards": lambda image: image[:, ::-1, :3],
    "every second column": lambda image: image[:, ::2, :3],
    "rows backwards": lambda image: image[::-1, :, :3],
    "columns as rows": lambda image: image[..., :3].swapaxes(0, 1),
    "planes": lambda image: np.asfortranarray(image[..., :3]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("antialias", [True, False])
def test_an_array_of_any_layout_has_the_pixels_of_its_copy(layout, antialias):
    image = LAYOUTS[layout](np.random.default_rng(0).integers(0, 256, (37, 51, 4), np.uint8))
    scaled = scale(image, (13, 9), antialias)
    assert np.array_equal(scaled, scale(np.ascontiguousarray(image), (13, 9), antialias))


def nearest(image, size):
    """Return the pixel under the center of each result."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for old, new in zip(image.shape[:2], size, strict=True)
    )
    return image[rows][:, columns]


def turned_scaled_and_flipped(image, size, antialias, flip, labels):
    """Return what a batch is to hold of an image, uint8 [H, W, C], a step at a time."""
    image = np.ascontiguousarray(np.swapaxes(image, 0, 1) if flip & TURNED else image)
    if size is not None:
        image = nearest(image, size) if labels else scale(image, size, antialias)
    return image[:: -1 if flip & UPSIDE_DOWN else 1, :: -1 if flip & MIRRORED else 1]


@given(
    st.sampled_from([1, 3, 4]),
    st.booleans(),
    st.none() | st.tuples(SIDES, SIDES),
    st.booleans(),
    st.integers(0, 7),
    st.booleans(),
)
@example(3, True, (40, 50), True, 3, False)  # of its own size
@example(3, True, (20, 30), True, MIRRORED, False)
@example(1, True, (20, 30), True, TURNED, False)
@example(3, False, (20, 30), True, UPSIDE_DOWN, False)
@example(3, False, (60, 80), True, 7, False)
@example(3, True, (60, 20), True, 0, False)  # one side grows
@example(4, False, (20, 80), False, 0, False)
@example(1, True, (13, 70), True, 5, True)
def test_an_image_has_the_same_pixels_in_a_batch_and_alone(
    channels, interleaved, size, antialias, flip, labels
):
    picture = cv2.merge([pixels(channel, 90, 120, 1) for channel in range(channels)])
    picture = picture.reshape(90, 120, channels)
    window = picture[10:50, 20:70]
    expected = turned_scaled_and_flipped(window, size, antialias, flip, labels)
    if not interleaved:
        picture = np.ascontiguousarray(picture.transpose(2, 0, 1)).transpose(1, 2, 0)
        window = picture[10:50, 20:70]
    before = picture.copy()
    planes = np.full((channels, *expected.shape[:2]), 7, np.uint8)
    scale_into(window, antialias, flip, planes, labels)
    assert np.abs(planes.transpose(1, 2, 0).astype(int) - expected).max() <= 1
    alone = np.full(expected.shape, 7, np.uint8)
    scale_into(window, antialias, flip, alone, labels, interleaved=True)
    assert np.array_equal(alone, planes.transpose(1, 2, 0))
    assert np.array_equal(picture, before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling, "IS_PORTABLE", True)
        scale_into(window, antialias, flip, alone, labels, interleaved=True)
        assert np.array_equal(alone, planes.transpose(1, 2, 0))
        patch.setattr(scaling, "find", lambda name: None)
        scale_into(window, antialias, flip, alone, labels, interleaved=True)
    assert np.abs(alone.astype(int) - expected).max() <= 1
