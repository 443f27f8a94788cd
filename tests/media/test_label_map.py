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
from framework.media.decode import encode_png
from framework.media.label_map import BadLabels, colored, decode_labels, label_colors, labels_header
from tests.contract.cases import jpeg, pixels


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
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    bits = np.unpackbits(samples.astype(np.uint8)[:, :, None], axis=2)[:, :, -bit_depth:]
    rows = [b"\0" + np.packbits(row.ravel()).tobytes() for row in bits]
    head = struct.pack(">IIBBBBB", samples.shape[1], samples.shape[0], bit_depth, color, 0, 0, 0)
    palette = chunk(b"PLTE", bytes(range(48))) if color == 3 else b""
    pixels = chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + palette + pixels + chunk(b"IEND", b"")


def labels_of(data, **options):
    return decode_labels(data, **options)[:, :, 0]


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
        (encode_png(pixels(0).transpose(2, 0, 1)), "colors or alpha"),
        (png(np.zeros((3, 3, 2), np.uint8), "LA"), "colors or alpha"),
    ],
    ids=["jpeg", "colors", "alpha"],
)
def test_an_image_that_is_no_label_map_is_refused(data, words):
    with pytest.raises(BadLabels, match=words):
        labels_header(data)


def test_a_map_is_shown_in_a_color_for_each_class():
    colors = label_colors()
    assert len({tuple(color) for color in colors.tolist()}) == 256
    assert colors[0].tolist() == [0, 0, 0]
    assert colors[15].tolist() == [192, 128, 128]  # a person, in Pascal VOC's own palette
    mask = torch.tensor([[[[0, 15, IGNORE]]]], dtype=torch.uint8)
    batch = {"mask": mask, "label": torch.tensor([3])}
    shown = colored(batch, ("mask",))
    assert shown["mask"][0, :, 0, 1].tolist() == [192, 128, 128]
    assert shown["label"] is batch["label"]
