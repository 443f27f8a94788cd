"""Regions of an image as COCO stores them: polygons, and run lengths (RLE) plain or compressed."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

FRACTION_BITS = 4  # of a vertex, for OpenCV
FARTHEST = 1 << 20  # pixels; vertices beyond are moved there, so that they fit int32


def painted(
    regions: Sequence[tuple[Any, int]], height: int, width: int, background: int = 0
) -> np.ndarray:
    """Return a label map, uint8 [1, height, width], of pairs (region, value), the last on top.

    A region is a list of polygons, each ``[x, y, x, y, ...]`` in pixels, or ``{size, counts}`` with
    counts as a list or as text. ValueError if not, or for an image of another size.
    """
    painting = np.full((height, width), background, np.uint8)
    for region, value in regions:
        if not isinstance(region, list):
            painting[_run_mask(region, height, width)] = value
            continue
        for polygon in region:
            points = np.asarray(polygon, np.float64)
            is_flat = points.ndim == 1 and len(points) >= 6 and not len(points) % 2
            if not is_flat or not np.isfinite(points).all():
                raise ValueError("a polygon is not at least three points of finite numbers")
            # COCO's pixel 0 goes from 0 to 1, and OpenCV's has its center at 0.
            points = (points.reshape(-1, 2).clip(-FARTHEST, FARTHEST) - 0.5) * (1 << FRACTION_BITS)
            vertices = [np.round(points).astype(np.int32)]
            cv2.fillPoly(painting, vertices, (value,), shift=FRACTION_BITS)
    return painting[None]


def _run_mask(region: Any, height: int, width: int) -> np.ndarray:
    if not isinstance(region, dict) or list(region.get("size", ())) != [height, width]:
        raise ValueError("neither polygons nor run lengths of this image's size")
    counts = region.get("counts")
    if isinstance(counts, str):
        counts = run_lengths(counts)
    if not isinstance(counts, list) or not all(type(c) is int and c >= 0 for c in counts):
        raise ValueError("its counts are not whole numbers")
    if sum(counts) != height * width:
        raise ValueError(f"its counts make {sum(counts)} pixels, not {height * width}")
    inside = np.arange(len(counts)) % 2 == 1
    return np.repeat(inside, counts).reshape(width, height).T  # they go down the columns


def run_lengths(text: str) -> list[int]:
    """Return the run lengths in COCO's compressed text. ValueError for other texts.

    Six bits a character: five of the number, lowest first, and whether more follow. From the fourth
    on, each number is the difference to the one two places before it.

    Source: the format of ``rleToString`` in the COCO API.
    """
    counts: list[int] = []
    number = place = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or place > 60:
            raise ValueError("its counts are not compressed run lengths")
        number |= (bits & 31) << place
        place += 5
        if bits & 32:
            continue
        if bits & 16:  # the sign
            number -= 1 << place
        if len(counts) > 2:
            number += counts[-2]
        counts.append(number)
        number = place = 0
    if place:
        raise ValueError("its counts end inside a number")
    return counts
