"""Slices of images that C reads are those that Python reads, bit by bit."""

import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from framework.media.decode import encode_png, window_pixels
from framework.media.header import BadImage, read_header
from framework.media.scale import (
    LEFT,
    SIZES,
    STORED,
    before_turn,
    decode_windows,
    read_headers,
    scale_into,
    turbojpeg,
)
from framework.system.native import find
from tests.contract.cases import pixels
from tests.store.fuzz import flips, in_a_process, truncations

pytestmark = pytest.mark.skipif(
    turbojpeg() is None or find("paceline_decode_jpegs") is None,
    reason="needs a C compiler, and the extra 'turbo'",
)
HEIGHT, WIDTH = 90, 70
SUBSAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]


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


def lying(orientation):
    """Return a JPEG with an EXIF note on how it lies."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.new("RGB", (24, 16), (200, 30, 90)).save(file, "jpeg", exif=exif)
    return file.getvalue()


@st.composite
def windows(draw):
    top, left = draw(st.integers(0, HEIGHT - 1)), draw(st.integers(0, WIDTH - 1))
    height, width = draw(st.integers(1, HEIGHT - top)), draw(st.integers(1, WIDTH - left))
    return [top, left, height, width, draw(st.integers(0, 7))]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(SUBSAMPLINGS), windows()), min_size=1, max_size=4),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 3]),
)
def test_windows_of_a_slice_are_those_of_each_image(chosen, size, antialias, interleaved, channels):
    files = [encoded(HEIGHT, WIDTH, kind) for kind, _ in chosen]
    places = np.array([window for _, window in chosen])
    headers = read_headers(files)
    assert headers[:, SIZES].tolist() == [[HEIGHT, WIDTH]] * len(files)
    shape = (*size, channels) if interleaved else (channels, *size)
    results = np.zeros((len(files), *shape), np.uint8)
    decode_windows(headers, places, antialias, results, interleaved)
    assert not headers[:, LEFT].any()
    for file, window, result in zip(files, places.tolist(), results, strict=True):
        scaled = before_turn(window[4], size)
        own = window_pixels(file, read_header(file), channels, tuple(window), scaled)
        expected = np.zeros(shape, np.uint8)
        scale_into(own, antialias, window[4], expected, interleaved=interleaved)
        assert np.array_equal(result, expected)


def test_what_c_does_not_read_is_left_and_the_next_image_is_read():
    good, cut = encoded(HEIGHT, WIDTH), encoded(HEIGHT, WIDTH)[:900]
    files = [good, encode_png(np.zeros((3, 8, 8), np.uint8)), cut, lying(6), good]
    headers = read_headers(files)
    assert headers[:, LEFT].tolist() == [0, 1, 0, 0, 0]
    assert headers[3, SIZES].tolist() == [24, 16]
    results = np.zeros((5, 3, 8, 8), np.uint8)
    decode_windows(headers, np.array([[0, 0, 8, 8, 0]] * 5), True, results, False)
    assert headers[:, LEFT].tolist() == [0, 1, 1, 1, 0]
    assert np.array_equal(results[0], results[4])
    assert results[0].any()


def compare(files):
    """Compare the headers that C reads with those that Python reads."""
    headers = read_headers(files)
    for number, file in enumerate(files):
        if headers[number, LEFT]:
            continue
        known = read_header(file)
        own = headers[number, STORED].tolist()
        assert own == [known.height, known.width, known.channels, known.orientation]
        assert (known.format, known.bit_depth) == ("jpeg", 8)


def check_mutated():
    whole = [encoded(20, 30), encoded(20, 30, "444", progressive=True), *map(lying, range(1, 9))]
    compare(whole)
    assert not read_headers(whole)[:, LEFT].any()
    for data in whole:
        for files in (flips(data[:700], 300), truncations(data[:700], 100)):
            compare(list(files))


def test_headers_of_mutated_files_are_those_of_python():
    assert in_a_process(check_mutated) == 0


def test_a_damaged_file_is_refused_by_its_name_alone():
    headers = read_headers([b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe1\x00"])
    assert headers[:, LEFT].all()
    with pytest.raises(BadImage):
        read_header(b"\xff\xd8\xff\xe1\x00")
