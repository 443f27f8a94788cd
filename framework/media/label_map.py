"""Label maps: PNG files whose pixels are class numbers, and colors to show them.

The numbers are the samples in the file: gray values, or indices into a palette, which is ignored.
Samples of 1, 2 or 4 bits are not stretched to 255, as those of a picture are.
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
from framework.media.decode import MAX_PIXELS, accepted_header, check_png, orient
from framework.media.header import BadImage, ImageHeader, png_chunks

GRAY, PALETTE = 0, 3  # PNG's color types
# By bits per sample: the factor by which the decoder stretches gray values.
STRETCHED = {1: 255, 2: 85, 4: 17, 8: 1, 16: 1}


class BadLabels(BadImage):
    """The image cannot be a label map."""


def labels_header(data: Any, max_pixels: int = MAX_PIXELS, deepest: int = 8) -> ImageHeader:
    """Return the header of a PNG with one number of 8, or ``deepest``, bits per pixel. BadImage."""
    header = accepted_header(data, max_pixels, deepest=16)
    if header.format != "png":
        raise BadLabels(f"a {header.format.upper()}: a label map must be a PNG")
    if data[25] not in (GRAY, PALETTE):
        what = "colors or alpha: a label map must be a PNG with one gray channel or a palette"
        raise BadLabels(what)
    if header.bit_depth > deepest:
        raise BadLabels("numbers of 16 bits: map them to 0..255 with input.values")
    return header


def decode_labels(data: Any, max_pixels: int = MAX_PIXELS, deepest: int = 8) -> np.ndarray:
    """Return class numbers [H, W, 1], upright: uint8, or uint16. See ``labels_header``."""
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


@cache
def label_colors() -> np.ndarray:
    """Return an RGB color for each class, uint8 [256, 3]. 0 is black, ``IGNORE`` is light gray.

    Source: Pascal VOC's color map, which spreads the bits of a number over the channels.
    """
    numbers = np.arange(256, dtype=np.uint8)
    colors = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        channel = bit % 3
        colors[:, channel] |= (numbers >> bit & 1) << (7 - bit // 3)
    colors[IGNORE] = 224
    return colors


def colored(batch: Batch, names: Sequence[str]) -> Batch:
    """Replace the label maps ``names`` (uint8 [B, 1, H, W]) by pictures (uint8 [B, 3, H, W])."""
    colors = torch.from_numpy(label_colors())
    pictures = {name: colors[batch[name][:, 0].long().cpu()] for name in names}
    return {**batch, **{name: values.permute(0, 3, 1, 2) for name, values in pictures.items()}}


def _as_gray(data: Any) -> bytes:
    """Return a gray PNG of the same samples, so that a decoder does not change them.

    Palette, transparency, gamma and orientation are left out.
    """
    parts = [bytes(data[:8])]
    for kind, at, length in png_chunks(data):
        content = bytes(data[at : at + length])
        if kind == b"IHDR":
            content = content[:9] + bytes([GRAY]) + content[10:]
        if kind in (b"IHDR", b"IDAT", b"IEND"):
            body = kind + content
            parts += [struct.pack(">I", length), body, struct.pack(">I", zlib.crc32(body))]
    return b"".join(parts)
