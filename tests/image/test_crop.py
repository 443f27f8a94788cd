import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from framework.image import jpeg
from framework.image.crop import scaled_region, window_pixels
from framework.image.decode import decode, encode_png
from framework.image.header import ImageHeader, read_header
from tests.contract.cases import pixels
from tests.image.test_jpeg import encoded

WINDOW = (5, 7, 30, 41, 0)


def _cut(data, window):
    top, left, height, width, _ = window
    return decode(data, 3)[top : top + height, left : left + width]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_window_is_cut_from_the_upright_image(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels(3, 60, 90)).save(file, "jpeg", exif=exif, quality=95)
    data = file.getvalue()
    assert np.array_equal(
        window_pixels(data, read_header(data), 3, WINDOW, None), _cut(data, WINDOW)
    )


def test_a_png_is_cut_too():
    data = encode_png(pixels(3, 60, 90).transpose(2, 0, 1))
    assert np.array_equal(
        window_pixels(data, read_header(data), 3, WINDOW, None), _cut(data, WINDOW)
    )


@pytest.mark.parametrize("size", [None, (8, 8), (15, 20), (3, 4), (100, 100)])
@pytest.mark.parametrize("subsampling", ["444", "420", "411", "Gray"])
def test_without_the_library_the_pixels_are_the_same(monkeypatch, size, subsampling):
    data = encoded(70, 95, subsampling)
    with_library = np.array(window_pixels(data, read_header(data), 3, WINDOW, size))
    monkeypatch.setattr(jpeg, "find", lambda: None)
    assert np.array_equal(window_pixels(data, read_header(data), 3, WINDOW, size), with_library)


@settings(max_examples=300)
@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 90), st.integers(1, 90), st.data())
def test_a_region_covers_its_result_lies_in_the_image_and_is_near_the_window(
    height, width, high, wide, data
):
    tall, broad = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - tall)), data.draw(st.integers(0, width - broad))
    region = scaled_region(
        ImageHeader("jpeg", height, width, 3), (top, left, tall, broad, 0), (high, wide)
    )
    d = region.denominator
    assert region.height >= 1
    assert region.width >= 1
    assert region.top + region.height <= -(-height // d)
    assert region.left + region.width <= -(-width // d)
    assert d == 1 or (tall >= d * high and broad >= d * wide)
    assert abs(region.top * d - top) <= d / 2
    assert abs(region.left * d - left) <= d / 2


def test_without_a_size_nothing_is_scaled():
    assert (
        scaled_region(ImageHeader("jpeg", 800, 800, 3), (0, 0, 800, 800, 0), None).denominator == 1
    )
