import struct
import zlib
from io import BytesIO

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from framework.data import decode as module
from framework.data.decode import BadImage, cut, decode, encode_png, image_size, image_suffix, num_channels
from tests.contract.cases import jpeg, pixels

PICTURE = pixels(1, 20, 30)
SUFFIXES = [".png", ".bmp", ".tif", ".webp"]


def _encoded(suffix, picture=PICTURE):
    options = [cv2.IMWRITE_WEBP_QUALITY, 101] if suffix == ".webp" else []
    return cv2.imencode(suffix, picture[:, :, ::-1] if picture.shape[2] == 3 else picture, options)[1].tobytes()


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _huge_png():
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)) + _chunk(b"IEND", b"")


def _huge_bmp():
    data = bytearray(_encoded(".bmp"))
    struct.pack_into("<ii", data, 18, 100_000, 100_000)
    return bytes(data)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_lossless_files_come_back_as_they_were_in_rgb(suffix):
    assert np.array_equal(decode(_encoded(suffix), 3), PICTURE)
    assert image_size(_encoded(suffix)) == (20, 30)


def test_a_jpeg_comes_back_nearly_as_it_was_in_rgb():
    found = decode(jpeg(1, 20, 30), 3)
    assert found.shape == (20, 30, 3)
    assert np.abs(found.astype(int) - PICTURE).mean() < 5
    assert image_size(jpeg(1, 20, 30)) == (20, 30)


@pytest.mark.parametrize("data", [jpeg(1, 20, 30), _encoded(".png")])
def test_one_channel_is_gray(data):
    gray = cv2.cvtColor(PICTURE, cv2.COLOR_RGB2GRAY)
    found = decode(data, 1)
    assert found.shape == (20, 30, 1)
    assert np.abs(found[:, :, 0].astype(int) - gray).mean() < 5


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_gray_file_becomes_three_equal_channels(suffix):
    found = decode(_encoded(suffix, pixels(2, channels=1)), 3)
    assert np.array_equal(found[:, :, 0], found[:, :, 1])
    assert np.array_equal(found[:, :, 0], found[:, :, 2])


def test_sixteen_bits_are_scaled_to_eight():
    deep = PICTURE.astype(np.uint16) * 257
    assert np.abs(decode(_encoded(".png", deep), 3).astype(int) - PICTURE).max() <= 1


def test_alpha_is_left_out():
    file = BytesIO()
    Image.fromarray(PICTURE).convert("RGBA").save(file, "png")
    assert np.array_equal(decode(file.getvalue(), 3), PICTURE)


@pytest.mark.parametrize("suffix", ["jpeg", "png"])
def test_the_orientation_note_of_a_camera_is_not_applied(suffix):
    file, note = BytesIO(), Image.Exif()
    note[0x0112] = 6
    Image.fromarray(PICTURE).save(file, suffix, exif=note)
    assert decode(file.getvalue(), 3).shape == (20, 30, 3)


@pytest.mark.parametrize(
    "data", [b"", b"x", b"just text, no image", b"\xff\xd8", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", bytes(100)]
)
def test_what_is_no_image_is_bad(data):
    with pytest.raises(BadImage):
        decode(data, 3)
    with pytest.raises(BadImage):
        num_channels(data)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".jpg"])
@pytest.mark.parametrize("part", [0.02, 0.1, 0.5, 0.9])
def test_a_truncated_image_is_bad(suffix, part):
    data = _encoded(suffix, pixels(1, 200, 300))
    with pytest.raises(BadImage):
        decode(data[: int(len(data) * part)], 3)


@pytest.mark.parametrize("data", [_huge_png(), _huge_bmp()])
def test_a_header_that_promises_too_much_is_bad_before_memory_is_taken(data):
    with pytest.raises(BadImage):
        decode(data, 3)


def test_the_most_pixels_are_checked_for_every_image(monkeypatch):
    monkeypatch.setattr(module, "MAX_PIXELS", 599)
    with pytest.raises(BadImage, match="20 x 30 pixels are more than 599"):
        decode(jpeg(1, 20, 30), 3)


def test_the_number_of_channels_is_read_from_the_file():
    assert num_channels(jpeg(0)) == 3
    assert num_channels(simplejpeg.encode_jpeg(pixels(0, channels=1), colorspace="GRAY")) == 1
    assert num_channels(_encoded(".png")) == 3
    assert num_channels(_encoded(".png", pixels(0, channels=1))) == 1


@given(st.data())
def test_a_window_without_scaling_is_a_slice(data):
    height, width = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 30))
    top, left = data.draw(st.integers(0, 20 - height)), data.draw(st.integers(0, 30 - width))
    flip = data.draw(st.integers(0, 1))
    found = cut(PICTURE, (top, left, height, width, flip), None)
    expected = PICTURE[top : top + height, left : left + width][:, :: -1 if flip else 1].transpose(2, 0, 1)
    assert np.array_equal(found, expected)
    assert found.flags.c_contiguous


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(5, 6), (40, 60), (20, 30), (5, 60), (1, 1)])
def test_a_window_is_scaled_to_the_asked_size(channels, size):
    found = cut(pixels(1, 20, 30, channels), (0, 0, 20, 30, 0), size)
    assert found.shape == (channels, *size)
    assert found.dtype == np.uint8


def test_shrinking_by_a_whole_factor_averages_areas():
    found = cut(PICTURE, (0, 0, 20, 30, 0), (10, 15)).transpose(1, 2, 0)
    means = PICTURE.reshape(10, 2, 15, 2, 3).astype(float).mean((1, 3))
    assert np.abs(found - means).max() <= 1


def test_flipping_and_scaling_commute():
    flipped = cut(PICTURE, (2, 3, 10, 12, 1), (5, 6))
    assert np.array_equal(flipped, cut(PICTURE, (2, 3, 10, 12, 0), (5, 6))[:, :, ::-1])


def test_cutting_does_not_change_the_image():
    before = PICTURE.copy()
    cut(PICTURE, (0, 0, 20, 30, 1), None).fill(0)
    assert np.array_equal(PICTURE, before)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_keeps_every_pixel(channels):
    image = np.random.default_rng(0).integers(0, 256, (channels, 6, 7), np.uint8)
    assert np.array_equal(decode(encode_png(image), channels).transpose(2, 0, 1), image)


def test_the_ending_follows_the_bytes():
    assert image_suffix(jpeg(0)) == ".jpg"
    assert image_suffix(_encoded(".png")) == ".png"


@pytest.mark.parametrize("view", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_any_buffer_is_decoded(view):
    assert np.array_equal(decode(view(jpeg(1)), 3), decode(jpeg(1), 3))
    assert np.array_equal(decode(view(_encoded(".png")), 3), PICTURE)
