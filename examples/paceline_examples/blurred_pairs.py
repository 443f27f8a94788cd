"""Pairs for restoring images, made from any photographs: a window as it is, and blurred. For ``input=function``."""

import os
import zlib
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from framework.errors import DataError
from framework.image.decode import BadImage, decode
from framework.input.file_items import read_file


def blurred(
    path: str, split: str, val_every: int, size: int, sigma: float
) -> Iterator[dict[str, Any]]:
    """Fields ``blurry`` and ``sharp``, uint8 [3, size, size]: the middle of the image at ``path``, and that under a Gaussian blur.

    Of every ``val_every`` files one is for the split ``val``, chosen by a hash of its name; the others are for ``train``. A file of
    the other split, or smaller than ``size``, gives nothing. ``sigma``: of the blur, in pixels.
    """
    is_val = zlib.crc32(os.fsencode(os.path.basename(path))) % val_every == 0
    if is_val != (split == "val"):
        return
    try:
        image = decode(read_file(path), 3)
    except BadImage as error:
        raise DataError(
            106, path, f"not a readable image ({error})", "mend or remove it"
        ) from error
    if min(image.shape[:2]) < size:
        return
    blurry = cv2.GaussianBlur(
        image, (0, 0), sigma
    )  # of the whole image: the window's edges know what is beyond them
    yield {"blurry": _middle(blurry, size), "sharp": _middle(image, size)}


def _middle(image: np.ndarray, size: int) -> np.ndarray:
    """[H, W, C] -> contiguous [C, size, size]."""
    top, left = ((length - size) // 2 for length in image.shape[:2])
    return np.ascontiguousarray(image[top : top + size, left : left + size].transpose(2, 0, 1))
