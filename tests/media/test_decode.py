import base64
import io
import struct
import zlib
from contextlib import suppress

import cv2
import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from framework.contracts.records import IGNORE
from framework.media import decode as module
from framework.media.header import BadImage, ImageHeader, is_image, read_header
from tests.contract.cases import jpeg, pixels
from tests.media import test_golden_pixels as golden

PICTURE = pixels(1, 20, 30)
LARGE = pixels(1, 200, 300)
SUFFIXES = [".png", ".bmp", ".tif", ".webp"]


def encoded(suffix, picture=PICTURE):
    options = [cv2.IMWRITE_WEBP_QUALITY, 101] if suffix == ".webp" else []
    bgr = picture[:, :, ::-1] if picture.shape[2] == 3 else picture
    return cv2.imencode(suffix, bgr, options)[1].tobytes()


def difference(image, expected):
    """Return the mean difference of two images in levels."""
    return np.abs(image.astype(int) - expected).mean()


def test_a_jpeg_whose_subsampling_is_rare_is_decoded():
    data = bytearray(simplejpeg.encode_jpeg(PICTURE, colorsubsampling="422"))
    # one of the colors at full width, which TurboJPEG does not know
    data[data.index(b"\xff\xc0") + 17] = 0x21
    assert module.decode(data, 3).shape == (20, 30, 3)
    assert module.decode(data, 1, least=(10, 15)).shape == (10, 15, 1)


@pytest.mark.parametrize(
    ("least", "scale_of_jpeg"),
    [((200, 300), 1), ((101, 150), 1), ((100, 150), 2), ((40, 20), 4), ((1, 1), 8)],
    ids=str,
)
def test_a_jpeg_is_shrunk_to_the_smallest_size_that_is_enough(least, scale_of_jpeg):
    for suffix, factor in ((".jpg", scale_of_jpeg), (".png", 1)):
        data = encoded(suffix, LARGE)
        image = module.decode(data, 3, least=least)
        assert image.shape == (-(-200 // factor), -(-300 // factor), 3)
        size = image.shape[1::-1]
        assert (
            difference(image, cv2.resize(module.decode(data, 3), size, None, 0, 0, cv2.INTER_AREA))
            < 2
        )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_decoding_deeply_keeps_sixteen_bits(suffix, channels):
    deep = np.random.default_rng(0).integers(0, 1 << 16, (20, 30, channels), np.uint16)
    assert np.array_equal(module.decode_deep(encoded(suffix, deep), channels), deep)


def test_a_png_whose_bytes_changed_is_bad_and_nothing_is_printed(capfd):
    data = bytearray(encoded(".png", LARGE))
    data[len(data) // 2] ^= 1
    with pytest.raises(BadImage, match="checksum"):
        module.decode(data, 3)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("suffix", "form", "place", "words"),
    [
        (".png", ">II", 16, "50000 x 50000 pixels are more than 64000000"),
        (".bmp", "<ii", 18, "truncated"),
    ],
    ids=["png", "bmp"],
)
def test_a_header_that_promises_too_much_is_bad_before_memory_is_taken(suffix, form, place, words):
    data = bytearray(encoded(suffix))
    struct.pack_into(form, data, place, 50_000, 50_000)
    with pytest.raises(BadImage, match=words):
        module.decode(bytes(data), 3)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".jpg"])
def test_the_most_pixels_are_checked_for_every_image(suffix):
    assert module.decode(encoded(suffix), 3, max_pixels=600).shape == (20, 30, 3)
    with pytest.raises(BadImage, match="20 x 30 pixels are more than 599"):
        module.decode(encoded(suffix), 3, max_pixels=599)


@given(st.data())
def test_a_damaged_file_is_decoded_or_bad(data):
    file = bytearray(encoded(data.draw(st.sampled_from([*SUFFIXES, ".jpg", ".gif"]))))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadImage):
        assert module.decode(bytes(file), 3, max_pixels=100_000).shape == (
            *read_header(file).size,
            3,
        )


def test_a_picture_is_kept_without_loss_if_it_is_small():
    pixels = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    kind, data = module.data_uri(pixels).split(",")
    decoded = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
    assert kind == "data:image/png;base64"
    assert np.array_equal(decoded[:, :, ::-1].transpose(2, 0, 1), pixels)
    assert module.data_uri(np.zeros((1, 300, 20), np.uint8)).startswith("data:image/jpeg")


def png(values, mode="P", **options) -> bytes:
    """Return a PNG that Pillow wrote. Its palette, if any, has nothing to do with the numbers."""
    values = np.asarray(values)
    if mode == "P":
        image = Image.frombytes("P", values.shape[::-1], values.astype(np.uint8).tobytes())
        image.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    else:
        image = Image.fromarray(values)
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def plain_png(samples: np.ndarray, bit_depth: int, color: int) -> bytes:
    """Return a PNG built byte by byte, as no library writes a gray one of 2 or 4 bits."""

    def chunk(kind, body):
        length, end = struct.pack(">I", len(body)), struct.pack(">I", zlib.crc32(kind + body))
        return length + kind + body + end

    bits = np.unpackbits(samples.astype(np.uint8)[:, :, None], axis=2)[:, :, -bit_depth:]
    rows = [b"\0" + np.packbits(row.ravel()).tobytes() for row in bits]
    head = struct.pack(">IIBBBBB", samples.shape[1], samples.shape[0], bit_depth, color, 0, 0, 0)
    palette = chunk(b"PLTE", bytes(range(48))) if color == 3 else b""
    pixels = chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + palette + pixels + chunk(b"IEND", b"")


def labels_of(data, **options):
    return module.decode_labels(data, **options)[:, :, 0]


@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 30))
def test_a_palette_s_indices_are_kept(seed, height, width):
    values = np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)
    assert np.array_equal(labels_of(png(values)), values)


@pytest.mark.parametrize("color", [0, 3], ids=["gray", "palette"])
@pytest.mark.parametrize("bit_depth", [1, 2, 4])
def test_samples_of_a_few_bits_are_their_own_numbers(bit_depth, color):
    values = np.random.default_rng(0).integers(0, 1 << bit_depth, (5, 9))
    values[0, 0] = (1 << bit_depth) - 1
    assert np.array_equal(labels_of(plain_png(values, bit_depth, color)), values)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (jpeg(0), "a JPEG: a label map must be a PNG"),
        (module.encode_png(pixels(0).transpose(2, 0, 1)), "colors or alpha"),
        (png(np.zeros((3, 3, 2), np.uint8), "LA"), "colors or alpha"),
    ],
    ids=["jpeg", "colors", "alpha"],
)
def test_an_image_that_is_no_label_map_is_refused(data, words):
    with pytest.raises(module.BadLabels, match=words):
        module.labels_header(data)


def test_a_map_is_shown_in_a_color_for_each_class():
    colors = module.label_colors()
    assert len({tuple(color) for color in colors.tolist()}) == 256
    assert colors[0].tolist() == [0, 0, 0]
    assert colors[15].tolist() == [192, 128, 128]  # a person, in Pascal VOC's own palette
    mask = torch.tensor([[[[0, 15, IGNORE]]]], dtype=torch.uint8)
    batch = {"mask": mask, "label": torch.tensor([3])}
    shown = module.colored(batch, ("mask",))
    assert shown["mask"][0, :, 0, 1].tolist() == [192, 128, 128]
    assert shown["label"] is batch["label"]


FORMATS = ("jpeg", "png", "gif", "webp", "bmp", "tiff")
TURNABLE = ("jpeg", "png", "webp", "tiff")


@pytest.mark.parametrize("kind", FORMATS)
def test_the_size_is_read_from_every_format(kind):
    header = read_header(golden.saved(golden.PICTURE, kind))
    assert header == ImageHeader(kind, 24, 32, 3)
    assert (header.size, header.colors) == ((24, 32), 3)


@pytest.mark.parametrize("kind", TURNABLE)
def test_orientation_turns_the_size_and_one_that_makes_no_sense_is_upright(kind):
    for orientation in range(1, 9):
        header = read_header(golden.noted(kind, orientation))
        assert (header.height, header.width, header.orientation) == (24, 32, orientation)
        assert header.size == ((24, 32) if orientation < 5 else (32, 24))
    for orientation in (0, 9, 65535):
        assert read_header(golden.noted(kind, orientation)).orientation == 1


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
    for mode, expected in modes.items():
        header = read_header(golden.saved(golden.PICTURE.convert(mode), kind))
        assert (header.channels, header.bit_depth) == expected


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


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\x00"]),
)
@example(b"\xff" * 100_000, b"\xff\xd8")
@example(b"\x01" * 100_000, b"GIF89a")
@example(bytes(100_000), b"\x89PNG\r\n\x1a\n")
@example(b"\x00\x00WEBPVP8X" + b"\x08" + bytes(100_000), b"RIFF\x00\x00")
def test_any_bytes_have_a_header_or_are_bad(data, magic):
    with suppress(BadImage):
        assert min(read_header(magic + data).size) > 0
