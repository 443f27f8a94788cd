"""Label maps: PNG files whose pixels are class numbers, and colors to look at them.

The numbers are the samples as the file has them: indices into the palette, which is not looked at, or gray values. A sample of 1, 2 or
4 bits is its own number (0 to 1, 3 or 15), where a picture's would be stretched to 255.
"""

import struct
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import cv2
import numpy as np
import torch

from framework.contracts.batch import Batch
from framework.contracts.records import IGNORE
from framework.image.decode import MAX_PIXELS, accepted_header, check_png, orient
from framework.image.header import BadImage, ImageHeader, png_chunks

GRAY, PALETTE = 0, 3  # PNG's color types
STRETCHED = {
    1: 255,
    2: 85,
    4: 17,
    8: 1,
    16: 1,
}  # what the decoder multiplies gray samples of so many bits by


class BadLabels(BadImage):
    """The image cannot be a label map. The caller knows which record it was."""


def labels_header(data: Any, max_pixels: int = MAX_PIXELS, deepest: int = 8) -> ImageHeader:
    """Return the header of a label map that may be decoded; no pixel is looked at.

    Args:
        data: A file's bytes, or a buffer of them.
        max_pixels: The most pixels it may have.
        deepest: The most bits of a number: 8 or 16.

    Raises:
        BadLabels: The file is an image, but no PNG with one number per pixel.
        BadImage: The file is no image, or too large.

    """
    header = accepted_header(data, max_pixels, deepest=16)
    if header.format != "png":
        raise BadLabels(f"a {header.format.upper()}: a label map must be a PNG")
    if data[25] not in (GRAY, PALETTE):
        raise BadLabels(
            "colors or alpha: a label map must be a PNG with one gray channel or a palette"
        )
    if header.bit_depth > deepest:
        raise BadLabels("numbers of 16 bits: map them to 0..255 with input.values")
    return header


def decode_labels(data: Any, max_pixels: int = MAX_PIXELS, deepest: int = 8) -> np.ndarray:
    """Return a PNG's class numbers, upright: uint8 [H, W, 1], or uint16 where the file has 16 bits. Arguments and errors as above."""
    header = labels_header(data, max_pixels, deepest)
    check_png(data)
    try:
        pixels = cv2.imdecode(np.frombuffer(_as_gray(data), np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        pixels = None
    if pixels is None or pixels.shape != (header.height, header.width):
        raise BadImage("a PNG that is truncated, damaged, or of a kind that is not read")
    factor = STRETCHED[header.bit_depth]
    if factor > 1:
        pixels //= factor
    return orient(pixels[:, :, None], header.orientation)


def _as_gray(data: Any) -> bytes:
    """The same samples as a gray PNG, without a palette, transparency, gamma or orientation that a decoder would apply."""
    parts = [bytes(data[:8])]
    for kind, at, length in png_chunks(data):
        content = bytes(data[at : at + length])
        if kind == b"IHDR":
            content = content[:9] + bytes([GRAY]) + content[10:]
        if kind in (b"IHDR", b"IDAT", b"IEND"):
            parts.append(
                struct.pack(">I", length)
                + kind
                + content
                + struct.pack(">I", zlib.crc32(kind + content))
            )
    return b"".join(parts)


@cache
def label_colors() -> np.ndarray:
    """Return a color for each class: uint8 [256, 3] (RGB). 0 is black and ``IGNORE`` is light gray.

    Source: Pascal VOC's color map, which spreads the bits of a number over the channels.
    """
    numbers = np.arange(256)
    colors = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= ((numbers >> (3 * bit + channel) & 1) << (7 - bit)).astype(
                np.uint8
            )
    colors[IGNORE] = 224
    return colors


def colored(batch: Batch, names: Sequence[str]) -> Batch:
    """Return ``batch`` with the label maps ``names`` (uint8 [B, 1, H, W]) as pictures (uint8 [B, 3, H, W])."""
    colors = torch.from_numpy(label_colors())
    return {
        **batch,
        **{name: colors[batch[name][:, 0].long().cpu()].permute(0, 3, 1, 2) for name in names},
    }
