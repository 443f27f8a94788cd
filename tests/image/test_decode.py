import struct
import zlib
from contextlib import suppress
from io import BytesIO

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from framework.image.decode import (
    BadImage,
    decode,
    decode_deep,
    decode_shrunk,
    encode_jpeg,
    encode_png,
    image_size,
    image_suffix,
    num_channels,
    orient,
)
from tests.contract.cases import jpeg, pixels

PICTURE = pixels(1, 20, 30)
SUFFIXES = [".png", ".bmp", ".tif", ".webp"]


def _encoded(suffix, picture=PICTURE):
    options = [cv2.IMWRITE_WEBP_QUALITY, 101] if suffix == ".webp" else []
    return cv2.imencode(suffix, picture[:, :, ::-1] if picture.shape[2] == 3 else picture, options)[
        1
    ].tobytes()


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _huge_png():
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0))
        + _chunk(b"IEND", b"")
    )


def _huge_bmp():
    data = bytearray(_encoded(".bmp"))
    struct.pack_into("<ii", data, 18, 100_000, 100_000)
    return bytes(data)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_lossless_files_come_back_as_they_were_in_rgb(suffix):
    assert np.array_equal(decode(_encoded(suffix), 3), PICTURE)
    assert image_size(_encoded(suffix)) == (20, 30)


def test_a_jpeg_comes_back_nearly_as_it_was_in_rgb():
    image = decode(jpeg(1, 20, 30), 3)
    assert image.shape == (20, 30, 3)
    assert np.abs(image.astype(int) - PICTURE).mean() < 5
    assert image_size(jpeg(1, 20, 30)) == (20, 30)


@pytest.mark.parametrize("data", [jpeg(1, 20, 30), _encoded(".png")])
def test_one_channel_is_gray(data):
    gray = cv2.cvtColor(PICTURE, cv2.COLOR_RGB2GRAY)
    image = decode(data, 1)
    assert image.shape == (20, 30, 1)
    assert np.abs(image[:, :, 0].astype(int) - gray).mean() < 5


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_gray_file_becomes_three_equal_channels(suffix):
    image = decode(_encoded(suffix, pixels(2, channels=1)), 3)
    assert np.array_equal(image[:, :, 0], image[:, :, 1])
    assert np.array_equal(image[:, :, 0], image[:, :, 2])


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_the_error_for_sixteen_bits_says_what_to_do(suffix):
    with pytest.raises(
        BadImage,
        match=r"more than 8 bits a channel: "
        r"pack it with pack\.bit_depth=8 pack\.encode=png, or 16 and raw",
    ):
        decode(_encoded(suffix, PICTURE.astype(np.uint16)), 3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_decoding_deeply_keeps_sixteen_bits(suffix, channels):
    deep = np.random.default_rng(0).integers(0, 1 << 16, (20, 30, channels), np.uint16)
    assert np.array_equal(decode_deep(_encoded(suffix, deep), channels), deep)


@pytest.mark.parametrize("data", [_encoded(".png"), jpeg(1, 20, 30)])
def test_decoding_deeply_spreads_eight_bits_over_sixteen(data):
    assert np.array_equal(decode_deep(data, 3), decode(data, 3).astype(np.uint16) * 257)


@pytest.mark.parametrize("white_is_zero", [True, False])
def test_a_gray_tiff_of_sixteen_bits_that_counts_from_white_is_inverted(white_is_zero):
    deep = np.random.default_rng(0).integers(0, 1 << 16, (20, 30), np.uint16)
    file = BytesIO()
    Image.fromarray(deep).save(file, "tiff", tiffinfo={262: 1 - white_is_zero})
    expected = 65535 - deep if white_is_zero else deep
    assert np.array_equal(decode_deep(file.getvalue(), 1)[..., 0], expected)


def test_nothing_deeper_than_sixteen_bits_is_decoded():
    with pytest.raises(BadImage, match="more than 16 bits a channel: convert it"):
        decode_deep(_encoded(".tif", PICTURE.astype(np.float32)), 3)


def test_alpha_is_left_out():
    file = BytesIO()
    Image.fromarray(PICTURE).convert("RGBA").save(file, "png")
    assert np.array_equal(decode(file.getvalue(), 3), PICTURE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"just text, no image",
        b"\xff\xd8",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        bytes(100),
    ],
)
def test_what_is_no_image_is_bad(data):
    with pytest.raises(BadImage):
        decode(data, 3)
    with pytest.raises(BadImage):
        num_channels(data)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".jpg", ".gif"])
def test_an_image_truncated_anywhere_is_bad_and_nothing_is_printed(suffix, capfd):
    data = _encoded(suffix, pixels(1, 200, 300))
    for percent in range(0, 100, 5):
        with pytest.raises(BadImage):
            decode(data[: len(data) * percent // 100], 3)
    assert capfd.readouterr() == ("", "")


def test_a_png_whose_bytes_changed_is_bad_and_nothing_is_printed(capfd):
    data = bytearray(_encoded(".png", pixels(1, 200, 300)))
    data[len(data) // 2] ^= 1
    with pytest.raises(BadImage, match="checksum"):
        decode(data, 3)
    assert capfd.readouterr() == ("", "")


def test_a_jpeg_whose_subsampling_is_rare_is_decoded():
    data = bytearray(simplejpeg.encode_jpeg(PICTURE, colorsubsampling="422"))
    data[data.index(b"\xff\xc0") + 17] = (
        0x21  # one of the colors at full width, which TurboJPEG does not know
    )
    assert decode(data, 3).shape == (20, 30, 3)
    assert decode_shrunk(data, 1, (10, 15)).shape == (10, 15, 1)


@pytest.mark.parametrize("data", [_huge_png(), _huge_bmp()])
def test_a_header_that_promises_too_much_is_bad_before_memory_is_taken(data):
    with pytest.raises(BadImage):
        decode(data, 3)


@pytest.mark.parametrize(
    "data",
    [jpeg(1, 20, 30), _encoded(".png"), _encoded(".tif"), _encoded(".webp"), _encoded(".bmp")],
)
def test_the_most_pixels_are_checked_for_every_image(data):
    assert decode(data, 3, max_pixels=600).shape == (20, 30, 3)
    with pytest.raises(BadImage, match="20 x 30 pixels are more than 599"):
        decode(data, 3, max_pixels=599)


def test_the_number_of_channels_is_read_from_the_file():
    assert num_channels(jpeg(0)) == 3
    assert num_channels(simplejpeg.encode_jpeg(pixels(0, channels=1), colorspace="GRAY")) == 1
    assert num_channels(_encoded(".png")) == 3
    assert num_channels(_encoded(".png", pixels(0, channels=1))) == 1


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_keeps_every_pixel(channels):
    image = np.random.default_rng(0).integers(0, 256, (channels, 6, 7), np.uint8)
    assert np.array_equal(decode(encode_png(image), channels).transpose(2, 0, 1), image)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_jpeg_keeps_about_every_pixel(channels):
    image = pixels(3, 40, 50, channels)
    data = encode_jpeg(image.transpose(2, 0, 1), 95)
    assert num_channels(data) == channels
    assert np.abs(decode(data, channels).astype(int) - image).mean() < 3


def test_the_quality_of_a_jpeg_decides_its_size():
    image = pixels(3, 200, 300).transpose(2, 0, 1)
    assert len(encode_jpeg(image, 50)) < len(encode_jpeg(image, 95))


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".jpg"])
def test_the_ending_follows_the_bytes(suffix):
    assert image_suffix(_encoded(suffix)) == suffix


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize(
    ("least", "scale_of_jpeg"),
    [((200, 300), 1), ((101, 150), 1), ((100, 150), 2), ((40, 20), 4), ((1, 1), 8)],
)
def test_a_jpeg_is_shrunk_to_the_smallest_that_is_enough(suffix, least, scale_of_jpeg):
    factor = scale_of_jpeg if suffix == ".jpg" else 1
    image = decode_shrunk(_encoded(suffix, pixels(1, 200, 300)), 3, least)
    assert image.shape == (-(-200 // factor), -(-300 // factor), 3)
    means = cv2.resize(
        decode(_encoded(suffix, pixels(1, 200, 300)), 3),
        image.shape[1::-1],
        interpolation=cv2.INTER_AREA,
    )
    assert np.abs(image.astype(int) - means).mean() < 2


@pytest.mark.parametrize("cut_at", range(5, 100, 5))
def test_a_truncated_jpeg_is_bad_at_any_scale(cut_at):
    data = _encoded(".jpg", pixels(1, 200, 300))
    with pytest.raises(BadImage):
        decode_shrunk(data[: len(data) * cut_at // 100], 3, (1, 1))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_upright_is_what_numpy_would_do(orientation):
    stored = pixels(1, 4, 6)
    turned = {
        5: np.transpose(stored, (1, 0, 2)),
        6: np.rot90(stored, -1),
        7: np.rot90(stored.transpose(1, 0, 2), 2),
        8: np.rot90(stored),
    }
    mirrored = {1: stored, 2: stored[:, ::-1], 3: stored[::-1, ::-1], 4: stored[::-1]}
    assert np.array_equal(orient(stored, orientation), (mirrored | turned)[orientation])
    assert orient(stored[:, :, :1], orientation).shape[2] == 1


@pytest.mark.parametrize(
    "view", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))]
)
def test_any_buffer_is_decoded(view):
    assert np.array_equal(decode(view(jpeg(1)), 3), decode(jpeg(1), 3))
    assert np.array_equal(decode(view(_encoded(".png")), 3), PICTURE)


@given(st.data())
def test_a_damaged_file_is_decoded_or_bad(data):
    file = bytearray(_encoded(data.draw(st.sampled_from([*SUFFIXES, ".jpg", ".gif"]))))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadImage):
        assert decode(bytes(file), 3, max_pixels=100_000).shape == (*image_size(file), 3)
