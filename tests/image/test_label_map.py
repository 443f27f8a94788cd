import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from framework.contracts.records import IGNORE
from framework.image.decode import encode_png
from framework.image.header import BadImage
from framework.image.label_map import BadLabels, colored, decode_labels, label_colors, labels_header
from tests.contract.cases import jpeg, pixels


def png(values, mode="P", **options) -> bytes:
    """Return a PNG that Pillow wrote. Its palette, if any, has nothing to do with the numbers."""
    values = np.asarray(values)
    image = (
        Image.frombytes("P", values.shape[::-1], values.astype(np.uint8).tobytes())
        if mode == "P"
        else Image.fromarray(values)
    )
    if mode == "P":
        image.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def plain_png(samples: np.ndarray, bit_depth: int, color: int) -> bytes:
    """Return a PNG built byte by byte, as no library writes a gray one of 2 or 4 bits."""
    rows = [
        np.unpackbits(row.astype(np.uint8)[:, None], axis=1)[:, -bit_depth:].ravel()
        for row in samples
    ]
    data = b"".join(b"\0" + np.packbits(row).tobytes() for row in rows)
    head = struct.pack(">IIBBBBB", samples.shape[1], samples.shape[0], bit_depth, color, 0, 0, 0)
    parts = [
        (b"IHDR", head),
        *([(b"PLTE", bytes(range(48)))] if color == 3 else []),
        (b"IDAT", zlib.compress(data)),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@given(seed=st.integers(0, 1000), height=st.integers(1, 30), width=st.integers(1, 30))
def test_a_palettes_indices_are_kept(seed, height, width):
    values = np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)
    assert np.array_equal(decode_labels(png(values))[:, :, 0], values)


@pytest.mark.parametrize("color", [0, 3])
@pytest.mark.parametrize("bit_depth", [1, 2, 4])
def test_samples_of_a_few_bits_are_their_own_numbers(bit_depth, color):
    values = np.random.default_rng(0).integers(0, 1 << bit_depth, (5, 9))
    if color == 3 and bit_depth == 4:
        values[0, 0] = 15
    assert np.array_equal(decode_labels(plain_png(values, bit_depth, color))[:, :, 0], values)


def test_gray_values_are_kept_and_transparency_is_ignored():
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(decode_labels(png(values, "L"))[:, :, 0], values)
    assert np.array_equal(decode_labels(png(values, "L", transparency=3))[:, :, 0], values)
    assert np.array_equal(decode_labels(png(values, "P", transparency=3))[:, :, 0], values)


def test_a_map_stands_upright():
    values = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter to the right
    assert np.array_equal(
        decode_labels(png(values, "L", exif=exif))[:, :, 0], [[4, 1], [5, 2], [6, 3]]
    )


def test_sixteen_bits_are_read_on_request():
    values = np.array([[0, 300], [65535, 7]], np.uint16)
    assert np.array_equal(decode_labels(png(values, "I;16"), deepest=16)[:, :, 0], values)
    with pytest.raises(BadLabels, match=r"16 bits.*input\.values"):
        decode_labels(png(values, "I;16"))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (jpeg(0), "a JPEG: a label map must be a PNG"),
        (encode_png(pixels(0).transpose(2, 0, 1)), "colors or alpha"),
        (png(np.zeros((3, 3, 2), np.uint8), "LA"), "colors or alpha"),
    ],
)
def test_what_is_no_label_map_is_refused(data, what):
    with pytest.raises(BadLabels, match=what):
        labels_header(data)


def test_a_damaged_map_is_no_readable_image():
    data = bytearray(png(np.zeros((9, 9))))
    data[-20] ^= 1
    with pytest.raises(BadImage, match="damaged"):
        decode_labels(bytes(data))
    with pytest.raises(BadImage):
        decode_labels(bytes(data[:40]))


def test_a_map_is_shown_in_a_color_for_each_class():
    colors = label_colors()
    assert len({tuple(color) for color in colors.tolist()}) == 256
    assert colors[0].tolist() == [0, 0, 0]
    assert colors[15].tolist() == [192, 128, 128]  # a person, in Pascal VOC's own palette
    batch = {
        "mask": torch.tensor([[[[0, 15, IGNORE]]]], dtype=torch.uint8),
        "label": torch.tensor([3]),
    }
    shown = colored(batch, ("mask",))
    assert shown["mask"][0, :, 0, 1].tolist() == [192, 128, 128]
    assert shown["label"] is batch["label"]
