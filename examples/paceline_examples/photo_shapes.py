"""Scenes for segmentation and detection: shapes cut out of photographs, on other photographs.

The photographs are the two that ship inside scikit-learn, so nothing is downloaded. Shapes and
background come from the same photographs, so that only the outline tells them apart. Use the scenes
with ``input=function``.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import cv2
import numpy as np

from framework.contracts.records import IGNORE
from framework.errors import ConfigError
from framework.media.decode import decode
from framework.system.user_code import needed

CLASSES = ("disc", "square", "triangle", "star", "cross")
PHOTOGRAPHS = ("china.jpg", "flower.jpg")  # by danielbuechele and vultilion, CC BY 2.0
SPLITS = {"train": (0.0, 2 / 3), "val": (2 / 3, 1.0)}  # the columns of each photograph
SMALLEST, LARGEST = 0.12, 0.24  # the radius of a shape, as a part of the image
LEAST_CONTRAST, MOST_CONTRAST = 30, 90  # how much a shape's mean color is shifted
FINE = 4  # pixels of an outline are drawn so many times finer
TRIES = 20  # places for a shape that does not overlap another one


class Shape(NamedTuple):
    """A shape in an image."""

    label: int
    cover: np.ndarray  # the part of each pixel that it covers, float32 [H, W]

    @property
    def box(self) -> list[int]:
        """Left, top, right and bottom of the pixels that it covers at least by half."""
        columns = np.flatnonzero((self.cover >= 0.5).any(0))
        rows = np.flatnonzero((self.cover >= 0.5).any(1))
        return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def segment_scenes(item: int, split: str, size: int, most: int) -> Iterator[dict[str, Any]]:
    """Yield scene ``item``: ``image``, uint8 [size, size, 3], and its label map ``mask``.

    The map's classes are 0 (background) and the numbers of ``CLASSES`` plus 1. Pixels on an outline
    have no class.

    Args:
        item: The number of the scene.
        split: ``train`` or ``val``, which show different parts of the photographs.
        size: Pixels of a side.
        most: The largest number of shapes.
    """
    image, shapes = _scene(item, split, size, most)
    mask = np.zeros((size, size), np.uint8)
    for shape in shapes:
        mask[shape.cover >= 0.75] = shape.label + 1
        mask[(shape.cover > 0.25) & (shape.cover < 0.75)] = IGNORE
    yield {"image": image, "mask": mask}


def detect_scenes(item: int, split: str, size: int, most: int) -> Iterator[dict[str, Any]]:
    """Yield scene ``item``: ``image``, uint8 [size, size, 3], ``boxes`` [n, 4] and ``label`` [n].

    The arguments are those of ``segment_scenes``. n may be 0.
    """
    image, shapes = _scene(item, split, size, most)
    boxes = np.array([shape.box for shape in shapes], np.float32).reshape(-1, 4)
    yield {"image": image, "boxes": boxes, "label": np.array([s.label for s in shapes], np.int64)}


def _scene(item: int, split: str, size: int, most: int) -> tuple[np.ndarray, list[Shape]]:
    """Draw up to ``most`` shapes, which do not overlap, on a background."""
    if split not in SPLITS:
        raise ConfigError(116, f"split = {split}", "not a split", "choose train or val")
    rng = np.random.default_rng([list(SPLITS).index(split), item])
    image = _cutting(rng, split, size)
    shapes: list[Shape] = []
    taken: list[np.ndarray] = []  # center and radius
    for _ in range(rng.integers(0, most + 1)):
        place = _free_place(rng, taken, size)
        if place is None:
            continue
        taken.append(place)
        label = int(rng.integers(len(CLASSES)))
        cover = _cover(label, place, rng.uniform(0, 2 * np.pi), size)
        direction = rng.standard_normal(3)
        direction *= rng.uniform(LEAST_CONTRAST, MOST_CONTRAST) / np.linalg.norm(direction)
        inside = _cutting(rng, split, size) + direction
        image += cover[..., None] * (inside - image)
        shapes.append(Shape(label, cover))
    image = np.clip(image + 4 * rng.standard_normal(image.shape), 0, 255)
    return image.astype(np.uint8), shapes


def _free_place(rng: np.random.Generator, taken: list[np.ndarray], size: int) -> np.ndarray | None:
    """Return x, y and radius of a circle inside the image that meets no other, or None."""
    for _ in range(TRIES):
        radius = size * rng.uniform(SMALLEST, LARGEST)
        place = np.array([*rng.uniform(radius + 1, size - radius - 1, 2), radius])
        if all(np.hypot(*(place - other)[:2]) > radius + other[2] for other in taken):
            return place
    return None


def _cover(label: int, place: np.ndarray, angle: float, size: int) -> np.ndarray:
    """Return the part of each pixel that a shape covers, float32 [size, size]."""
    x, y, radius = place
    turns = angle + 2 * np.pi * _OUTLINES[label][:, 0]
    far = radius * _OUTLINES[label][:, 1]
    points = np.stack([x + far * np.cos(turns), y + far * np.sin(turns)], axis=1)
    fine = np.zeros((size * FINE, size * FINE), np.uint8)
    cv2.fillPoly(fine, [np.round(points * FINE).astype(np.int32)], (255,))
    coarse = cv2.resize(fine, (size, size), interpolation=cv2.INTER_AREA)
    return coarse.astype(np.float32) / 255


def _corners(number: int, inner: float | None = None) -> np.ndarray:
    """Return a polygon of ``number`` corners, or a star whose notches are at ``inner``."""
    if inner is None:
        return np.array([(corner / number, 1.0) for corner in range(number)])
    far = [1.0, inner] * number
    return np.array([(corner / (2 * number), part) for corner, part in enumerate(far)])


def _cross(width: float) -> np.ndarray:
    """Return a cross whose bars are ``width`` wide and 2 long, corner to corner."""
    tip = np.arctan2(width / 2, 1.0) / (2 * np.pi)
    notch = width / np.sqrt(2)
    arm = [(-tip, 1.0), (tip, 1.0), (1 / 8, notch)]
    return np.array([(turn + number / 4, far) for number in range(4) for turn, far in arm])


# Of each class: the corners, as (part of a turn, part of the radius).
_OUTLINES = (_corners(64), _corners(4), _corners(3), _corners(5, 0.45), _cross(0.55))


def _cutting(rng: np.random.Generator, split: str, size: int) -> np.ndarray:
    """Return a random part of a photograph, turned and mirrored: float [size, size, 3]."""
    photograph = _photographs()[rng.integers(len(PHOTOGRAPHS))]
    height, width = photograph.shape[:2]
    start, end = (round(width * part) for part in SPLITS[split])
    side = int(rng.integers(size, min(height, end - start) + 1))
    top, left = rng.integers(0, height - side + 1), rng.integers(start, end - side + 1)
    part = photograph[top : top + side, left : left + side]
    part = np.rot90(part, int(rng.integers(4)))
    if rng.integers(2):
        part = part[:, ::-1]
    scaled = cv2.resize(np.ascontiguousarray(part), (size, size), interpolation=cv2.INTER_AREA)
    return scaled.astype(np.float64)


@cache
def _photographs() -> list[np.ndarray]:
    needed("sklearn", "photos")
    folder = files("sklearn.datasets.images")
    return [decode(folder.joinpath(name).read_bytes(), 3) for name in PHOTOGRAPHS]
