"""One window of one encoded image, straight into a batch's memory: no more is decoded than the window needs."""

from typing import Any

import numpy as np

from framework.image import jpeg
from framework.image.decode import orient, stored
from framework.image.header import ImageHeader

Window = tuple[int, int, int, int, int]  # top, left, height, width, flip
DENOMINATORS = (8, 4, 2)  # libjpeg-turbo's fast scales


def window_pixels(
    data: Any, header: ImageHeader, channels: int, window: Window, size: tuple[int, int] | None
) -> np.ndarray:
    """uint8 [h, w, channels], unflipped: the window of the image in ``data``, no smaller than ``size``. ``header`` is accepted. Raises
    BadImage.

    The memory may be the thread's own, and be written over by the next call. ``window`` counts pixels of the image as it is seen, with
    its orientation applied. A JPEG is decoded at the smallest of the scales 1/1, 1/2, 1/4, 1/8 that still covers the result; the
    window's place is then rounded to that scale's pixels: less than half a pixel of the result.
    """
    top, left, height, width, _ = window
    if header.format == "jpeg" and header.orientation == 1:
        return _region(data, header, channels, scaled_region(header, window, size))
    return orient(stored(data, header, channels, 1), header.orientation)[
        top : top + height, left : left + width
    ]


def _region(data: Any, header: ImageHeader, channels: int, region: jpeg.Region) -> np.ndarray:
    pixels = None if jpeg.find() is None else jpeg.decode_region(data, channels, region)
    if pixels is not None:
        return pixels
    top, left, height, width, denominator = region
    return stored(data, header, channels, denominator)[top : top + height, left : left + width]


def scaled_region(header: ImageHeader, window: Window, size: tuple[int, int] | None) -> jpeg.Region:
    """The window in the pixels of the image at the smallest scale that covers ``size``."""
    top, left, height, width, _ = window
    fits = (
        d
        for d in DENOMINATORS
        if size is not None and height >= d * size[0] and width >= d * size[1]
    )
    d = next(fits, 1)
    start = (top + d // 2) // d, (left + d // 2) // d
    limit = -(-header.height // d) - start[0], -(-header.width // d) - start[1]
    return jpeg.Region(
        *start, min(limit[0], (height + d // 2) // d), min(limit[1], (width + d // 2) // d), d
    )
