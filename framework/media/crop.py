"""Decodes one window of an image: no more of the file than the window needs."""

from typing import Any

import numpy as np

from framework.media import jpeg
from framework.media.decode import orient, stored
from framework.media.header import ImageHeader

Window = tuple[int, int, int, int, int]  # top, left, height, width, flip
DENOMINATORS = (8, 4, 2)  # libjpeg-turbo's fast scales


def window_pixels(
    data: Any, header: ImageHeader, channels: int, window: Window, size: tuple[int, int] | None
) -> np.ndarray:
    """Return a window of the upright image as uint8 [h, w, channels], not flipped.

    A JPEG is decoded at the smallest of the scales 1, 1/2, 1/4, 1/8 that covers ``size``. The
    window is rounded to pixels of that scale, by less than half a pixel of the result. The next
    call of this thread may overwrite the pixels. Raises BadImage.
    """
    top, left, height, width, _ = window
    if header.format == "jpeg" and header.orientation == 1:
        region = scaled_region(header, window, size)
        pixels = None if jpeg.find() is None else jpeg.decode_region(data, channels, region)
        if pixels is not None:
            return pixels
        top, left, height, width, denominator = region
        image = stored(data, header, channels, denominator)
    else:
        image = orient(stored(data, header, channels, 1), header.orientation)
    return image[top : top + height, left : left + width]


def scaled_region(header: ImageHeader, window: Window, size: tuple[int, int] | None) -> jpeg.Region:
    """Return the window in pixels of the image at the smallest scale that covers ``size``."""
    top, left, height, width, _ = window
    d = 1
    if size is not None:
        fits = (d for d in DENOMINATORS if height >= d * size[0] and width >= d * size[1])
        d = next(fits, 1)
    start_row = (top + d // 2) // d
    start_column = (left + d // 2) // d
    rows = min(-(-header.height // d) - start_row, (height + d // 2) // d)
    columns = min(-(-header.width // d) - start_column, (width + d // 2) // d)
    return jpeg.Region(start_row, start_column, rows, columns, d)
