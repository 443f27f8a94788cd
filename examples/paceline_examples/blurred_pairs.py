"""Pairs for image restoration: a window of a photograph, and the same blurred.

Use it with ``input=function``.
"""

import os
import zlib
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from framework.errors import DataError
from framework.input.rows import read_file
from framework.media.decode import decode
from framework.media.header import BadImage


def blurred(
    path: str, split: str, val_every: int, size: int, sigma: float
) -> Iterator[dict[str, Any]]:
    """Yield the fields ``blurry`` and ``sharp``, uint8 [3, size, size], from an image's middle.

    Files of the other split, and images smaller than ``size``, give nothing.

    Args:
        path: The image file.
        split: ``train`` or ``val``.
        val_every: A hash of the file's name chooses one of so many files for ``val``.
        size: Pixels of a side.
        sigma: Standard deviation of the Gaussian blur, in pixels.
    """
    is_val = zlib.crc32(os.fsencode(os.path.basename(path))) % val_every == 0
    if is_val != (split == "val"):
        return
    try:
        image = decode(read_file(path), 3)
    except BadImage as error:
        what = f"not a readable image ({error})"
        raise DataError(106, path, what, "correct or remove it") from error
    if min(image.shape[:2]) < size:
        return
    # The whole image is blurred, so that the window's edges depend on the pixels beyond them.
    blurry = cv2.GaussianBlur(image, (0, 0), sigma)
    yield {"blurry": _middle(blurry, size), "sharp": _middle(image, size)}


def _middle(image: np.ndarray, size: int) -> np.ndarray:
    """Cut [H, W, C] to contiguous [C, size, size]."""
    top, left = ((length - size) // 2 for length in image.shape[:2])
    return np.ascontiguousarray(image[top : top + size, left : left + size].transpose(2, 0, 1))
