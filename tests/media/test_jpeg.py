"""Regions of JPEGs, decoded and cut."""

import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from framework.media import jpeg
from framework.media.crop import scaled_region, window_pixels
from framework.media.decode import decode, encode_png
from framework.media.header import ImageHeader, read_header
from framework.media.jpeg import Region, decode_region
from tests.contract.cases import pixels
from tests.store.fuzz import flips, in_a_process, truncations

SUBSAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]
needs_library = pytest.mark.skipif(jpeg.find() is None, reason="the extra 'turbo' is not installed")


def encoded(height, width, subsampling="420", seed=0, **options):
    """Return a JPEG of noise over a smooth picture.

    ``options`` are those of Pillow (progressive, restart markers).
    """
    noise = np.random.default_rng(seed).integers(-20, 20, (height, width, 3))
    image = (pixels(seed, height, width) + noise).clip(0, 255).astype(np.uint8)
    if subsampling == "Gray":
        gray = np.ascontiguousarray(image[:, :, :1])
        return simplejpeg.encode_jpeg(gray, colorspace="GRAY", colorsubsampling="Gray")
    if options:
        file = io.BytesIO()
        options = {"subsampling": {"444": 0, "422": 1, "420": 2}[subsampling], **options}
        Image.fromarray(image).save(file, "jpeg", quality=90, **options)
        return file.getvalue()
    return simplejpeg.encode_jpeg(image, quality=90, colorsubsampling=subsampling)


def assert_region_is_cut_from_the_whole(data, channels, region, height, width):
    top, left, high, wide, denominator = region
    least = (-(-height // denominator), -(-width // denominator)) if denominator > 1 else (0, 0)
    form = "RGB" if channels == 3 else "GRAY"
    whole = simplejpeg.decode_jpeg(data, form, min_height=least[0], min_width=least[1])
    expected = whole[top : top + high, left : left + wide]
    assert np.array_equal(decode_region(data, channels, region), expected)


@st.composite
def regions(draw, height, width):
    # of smaller images, simplejpeg chooses another scale
    d = draw(st.sampled_from([1, 2, 4, 8] if min(height, width) > 16 else [1]))
    high, wide = -(-height // d), -(-width // d)
    top, left = draw(st.integers(0, high - 1)), draw(st.integers(0, wide - 1))
    return Region(top, left, draw(st.integers(1, high - top)), draw(st.integers(1, wide - left)), d)


@needs_library
@settings(max_examples=100)
@given(
    st.integers(1, 130),
    st.integers(1, 130),
    st.sampled_from(SUBSAMPLINGS),
    st.sampled_from([1, 3]),
    st.data(),
)
def test_a_region_has_exactly_the_pixels_of_decoding_all(
    height, width, subsampling, channels, data
):
    region, file = data.draw(regions(height, width)), encoded(height, width, subsampling)
    assert_region_is_cut_from_the_whole(file, channels, region, height, width)


@needs_library
@given(
    st.sampled_from(["444", "422", "420"]),
    st.sampled_from([{"progressive": True}, {"restart_marker_blocks": 3}]),
    st.data(),
)
def test_progressive_files_and_restart_markers_are_no_exception(subsampling, options, data):
    file = encoded(97, 121, subsampling, **options)
    assert_region_is_cut_from_the_whole(file, 3, data.draw(regions(97, 121)), 97, 121)


def judge(files):
    """Check that each damaged file gives None, or pixels of the requested shape."""
    for data in files:
        result = decode_region(data, 3, Region(5, 3, 40, 50, 1))
        assert result is None or result.shape == (40, 50, 3)


@needs_library
def test_damage_never_crashes():
    file = encoded(80, 90)
    damaged = [*flips(file, 300), *flips(file, 200, 0, 300, seed=1), *truncations(file, 50)]
    assert in_a_process(judge, damaged) == 0


# ---- windows of any image

WINDOW = (5, 7, 30, 41, 0)


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels(3, 60, 90)).save(file, "jpeg", exif=exif, quality=95)
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [encode_png(pixels(3, 60, 90).transpose(2, 0, 1)), turned(1), turned(6)],
    ids=["png", "upright", "turned"],
)
def test_a_window_is_cut_from_the_upright_image(data):
    top, left, height, width, _ = WINDOW
    expected = decode(data, 3)[top : top + height, left : left + width]
    assert np.array_equal(window_pixels(data, read_header(data), 3, WINDOW, None), expected)


@pytest.mark.parametrize("size", [None, (15, 20), (3, 4), (100, 100)], ids=str)
@pytest.mark.parametrize("subsampling", ["420", "Gray"])
def test_without_the_library_the_pixels_are_the_same(monkeypatch, size, subsampling):
    data = encoded(70, 95, subsampling)
    with_library = np.array(window_pixels(data, read_header(data), 3, WINDOW, size))
    monkeypatch.setattr(jpeg, "find", lambda: None)
    assert np.array_equal(window_pixels(data, read_header(data), 3, WINDOW, size), with_library)


@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 90), st.integers(1, 90), st.data())
def test_a_scaled_region_covers_its_result_and_is_near_the_window(height, width, high, wide, data):
    tall, broad = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - tall)), data.draw(st.integers(0, width - broad))
    header, window = ImageHeader("jpeg", height, width, 3), (top, left, tall, broad, 0)
    region = scaled_region(header, window, (high, wide))
    d = region.denominator
    assert min(region.height, region.width) >= 1
    assert region.top + region.height <= -(-height // d)
    assert region.left + region.width <= -(-width // d)
    assert d == 1 or (tall >= d * high and broad >= d * wide)
    assert abs(region.top * d - top) <= d / 2
    assert abs(region.left * d - left) <= d / 2
    assert scaled_region(header, window, None).denominator == 1
