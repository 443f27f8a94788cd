import struct
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from framework.image.header import (
    BadImage,
    ImageHeader,
    is_image,
    plain_tiff,
    png_chunks,
    read_header,
)
from tests.contract.cases import jpeg, pixels

PICTURE = Image.fromarray(pixels(1, 20, 30))
FORMATS = ("jpeg", "png", "gif", "webp", "bmp", "tiff")


def saved(image: Image.Image, kind: str, **options) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noted(kind: str, orientation: int) -> bytes:
    """Return PICTURE as a file with an EXIF orientation."""
    note = Image.Exif()
    note[0x0112] = orientation
    return saved(PICTURE, kind, exif=note)


def big_endian_tiff(*tags: tuple[int, int, int]) -> bytes:
    """Return a TIFF without pixels. Each of ``tags`` is (tag, type, value)."""
    words = {
        3: lambda value: struct.pack(">HH", value, 0),
        4: lambda value: struct.pack(">I", value),
    }
    body = b"".join(
        struct.pack(">HHI", tag, kind, 1) + words[kind](value) for tag, kind, value in tags
    )
    return b"MM\x00*\x00\x00\x00\x08" + struct.pack(">H", len(tags)) + body + bytes(4)


SEEDS = [saved(PICTURE, kind) for kind in FORMATS] + [
    noted(kind, 6) for kind in ("jpeg", "png", "webp", "tiff")
]
SEEDS += [
    saved(PICTURE.convert("P"), "bmp"),
    saved(PICTURE, "gif", save_all=True, append_images=[PICTURE.rotate(90)]),
]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_size_is_read_from_every_format(kind):
    header = read_header(saved(PICTURE, kind))
    assert header == ImageHeader(kind, 20, 30, 3)
    assert (header.size, header.colors) == ((20, 30), 3)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_read_and_turns_the_size(kind, orientation):
    header = read_header(noted(kind, orientation))
    assert (header.height, header.width, header.orientation) == (20, 30, orientation)
    assert header.size == ((20, 30) if orientation < 5 else (30, 20))


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_makes_no_sense_is_upright(kind, orientation):
    assert read_header(noted(kind, orientation)).orientation == 1


@pytest.mark.parametrize(
    ("mode", "kind", "channels", "bit_depth"),
    [
        ("L", "jpeg", 1, 8),
        ("CMYK", "jpeg", 4, 8),
        ("1", "png", 1, 1),
        ("L", "png", 1, 8),
        ("LA", "png", 2, 8),
        ("P", "png", 3, 8),
        ("RGBA", "png", 4, 8),
        ("I;16", "png", 1, 16),
        ("1", "bmp", 1, 8),
        ("L", "bmp", 1, 8),
        ("P", "bmp", 3, 8),
        ("RGBA", "bmp", 4, 8),
        ("1", "tiff", 1, 1),
        ("L", "tiff", 1, 8),
        ("LA", "tiff", 2, 8),
        ("P", "tiff", 3, 8),
        ("RGBA", "tiff", 4, 8),
        ("CMYK", "tiff", 4, 8),
        ("I;16", "tiff", 1, 16),
        ("F", "tiff", 1, 32),
    ],
)
def test_channels_and_bits_are_read(mode, kind, channels, bit_depth):
    image = (
        Image.fromarray(np.asarray(PICTURE.convert("L"), np.uint16))
        if mode == "I;16"
        else PICTURE.convert(mode)
    )
    header = read_header(saved(image, kind))
    assert (header.channels, header.bit_depth) == (channels, bit_depth)


@pytest.mark.parametrize("kind", ["png", "gif", "webp", "tiff"])
def test_more_than_one_frame_is_noticed(kind):
    assert (
        read_header(saved(PICTURE, kind, save_all=True, append_images=[PICTURE.rotate(180)])).frames
        == 2
    )


@pytest.mark.parametrize(
    "options",
    [
        {"progressive": True},
        {"subsampling": 0},
        {"icc_profile": bytes(200_000)},
        {"comment": b"x" * 999},
    ],
)
def test_the_size_of_a_jpeg_is_found_behind_other_segments(options):
    assert read_header(saved(PICTURE, "jpeg", **options)) == ImageHeader("jpeg", 20, 30, 3)


def test_a_webp_without_loss_or_with_alpha_tells_its_size():
    assert read_header(saved(PICTURE, "webp", lossless=True)) == ImageHeader("webp", 20, 30, 3)
    seen_through = PICTURE.convert("RGBA")
    seen_through.putalpha(100)
    for lossless in (True, False):
        assert read_header(saved(seen_through, "webp", lossless=lossless)) == ImageHeader(
            "webp", 20, 30, 4
        )


def test_a_bmp_may_have_its_rows_from_top_to_bottom():
    data = bytearray(saved(PICTURE, "bmp"))
    struct.pack_into("<i", data, 22, -20)
    assert read_header(data).size == (20, 30)


def test_a_tiff_may_be_big_endian():
    tags = [(256, 4, 30), (257, 3, 20), (258, 3, 8), (262, 3, 1), (274, 3, 8)]
    assert read_header(big_endian_tiff(*tags)) == ImageHeader("tiff", 20, 30, 1, 8, 8)


def test_a_plain_tiff_is_upright_and_keeps_its_colors():
    data = noted("tiff", 6)
    assert read_header(data).orientation == 6
    assert read_header(plain_tiff(data)) == ImageHeader("tiff", 20, 30, 3)


def test_the_chunks_of_a_png_end_with_its_last():
    data = saved(PICTURE, "png")
    assert [kind for kind, _, _ in png_chunks(data + b"more")] == [b"IHDR", b"IDAT", b"IEND"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"just text, no image", "text, not an image"),
        (b"  <!DOCTYPE html><html><body>404</body></html>", "a web page"),
        (b'<?xml version="1.0"?><svg/>', "a web page"),
        (bytes(100), "only zeros"),
        (b"%PDF-1.7 ...", "a PDF file"),
        (b"\x00\x00\x00\x20ftypavif" + bytes(20), "kind 'avif'"),
        (b"\x93NUMPY\x01\x00", "no kind of image known here"),
        (b"\xff\xd8\xff", "truncated"),
        (b"\x89PNG\r\n\x1a\n", "truncated"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "without a picture"),
    ],
)
def test_the_error_describes_what_is_no_image(data, words):
    with pytest.raises(BadImage, match=words):
        read_header(data)


@pytest.mark.parametrize("data", SEEDS, ids=range(len(SEEDS)))
@pytest.mark.parametrize("percent", range(0, 100, 5))
def test_a_truncated_header_is_bad_and_a_whole_one_is_right(data, percent):
    with suppress(BadImage):
        assert read_header(data[: len(data) * percent // 100]) == read_header(data)


def only_bad_image(data: bytes) -> None:
    with suppress(BadImage):
        assert min(read_header(data).size) > 0


@given(
    st.binary(max_size=300),
    st.sampled_from(
        [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\x00", b"MM\x00*"]
    ),
)
@example(b"\xff" * 100_000, b"\xff\xd8")
@example(b"\x01" * 100_000, b"GIF89a")
@example(bytes(100_000), b"\x89PNG\r\n\x1a\n")
@example(b"\x00\x00WEBPVP8X" + b"\x08" + bytes(100_000), b"RIFF\x00\x00")
def test_any_bytes_have_a_header_or_are_bad(data, magic):
    only_bad_image(magic + data)


@given(st.data())
def test_a_damaged_file_has_a_header_or_is_bad(data):
    file = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 8))):
        file[data.draw(st.integers(0, min(len(file), 400) - 1))] = data.draw(
            st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])
        )
    only_bad_image(bytes(file))


@pytest.mark.parametrize(
    "view", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)]
)
def test_any_buffer_is_read(view):
    assert read_header(view(jpeg(0))) == ImageHeader("jpeg", 16, 12, 3)


def test_any_bytes_are_an_image_or_none():
    assert is_image(jpeg(0))
    assert not is_image(b"")
    assert not is_image(jpeg(0)[:20])
