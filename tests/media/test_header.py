from contextlib import suppress
from io import BytesIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from framework.media.header import BadImage, ImageHeader, is_image, read_header
from tests.contract.cases import pixels

PICTURE = Image.fromarray(pixels(1, 20, 30))
FORMATS = ("jpeg", "png", "gif", "webp", "bmp", "tiff")
TURNABLE = ("jpeg", "png", "webp", "tiff")


def saved(image: Image.Image, kind: str, **options) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noted(kind: str, orientation: int) -> bytes:
    """Return PICTURE as a file with an EXIF orientation."""
    note = Image.Exif()
    note[0x0112] = orientation
    return saved(PICTURE, kind, exif=note)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_size_is_read_from_every_format(kind):
    header = read_header(saved(PICTURE, kind))
    assert header == ImageHeader(kind, 20, 30, 3)
    assert (header.size, header.colors) == ((20, 30), 3)


@pytest.mark.parametrize("kind", TURNABLE)
def test_orientation_turns_the_size_and_one_that_makes_no_sense_is_upright(kind):
    for orientation in range(1, 9):
        header = read_header(noted(kind, orientation))
        assert (header.height, header.width, header.orientation) == (20, 30, orientation)
        assert header.size == ((20, 30) if orientation < 5 else (30, 20))
    for orientation in (0, 9, 65535):
        assert read_header(noted(kind, orientation)).orientation == 1


@pytest.mark.parametrize(
    ("kind", "modes"),
    [
        ("jpeg", {"L": (1, 8), "CMYK": (4, 8)}),
        ("png", {"1": (1, 1), "L": (1, 8), "LA": (2, 8), "P": (3, 8), "RGBA": (4, 8)}),
        ("bmp", {"1": (1, 8), "L": (1, 8), "P": (3, 8), "RGBA": (4, 8)}),
        ("tiff", {"1": (1, 1), "L": (1, 8), "LA": (2, 8), "P": (3, 8), "RGBA": (4, 8)}),
        ("tiff", {"CMYK": (4, 8), "F": (1, 32)}),
    ],
    ids=["jpeg", "png", "bmp", "tiff", "tiff of other kinds"],
)
def test_channels_and_bits_are_read(kind, modes):
    headers = {mode: read_header(saved(PICTURE.convert(mode), kind)) for mode in modes}
    assert {mode: (header.channels, header.bit_depth) for mode, header in headers.items()} == modes


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"just text, no image", "text, not an image"),
        (bytes(100), "only zeros"),
        (b"\x00\x00\x00\x20ftypavif" + bytes(20), "kind 'avif'"),
        (b"\xff\xd8\xff", "truncated"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "without a picture"),
    ],
    ids=["nothing", "text", "zeros", "avif", "jpeg", "gif"],
)
def test_the_error_describes_bytes_that_are_no_image(data, words):
    with pytest.raises(BadImage, match=words):
        read_header(data)
    assert not is_image(data)


def has_header_or_is_bad(data: bytes) -> None:
    with suppress(BadImage):
        assert min(read_header(data).size) > 0


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\x00"]),
)
@example(b"\xff" * 100_000, b"\xff\xd8")
@example(b"\x01" * 100_000, b"GIF89a")
@example(bytes(100_000), b"\x89PNG\r\n\x1a\n")
@example(b"\x00\x00WEBPVP8X" + b"\x08" + bytes(100_000), b"RIFF\x00\x00")
def test_any_bytes_have_a_header_or_are_bad(data, magic):
    has_header_or_is_bad(magic + data)
