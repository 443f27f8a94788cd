"""Photos of potato chips, good and spoilt, drawn from nothing. For ``input=function``."""

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

BELT, GOLD, BROWN = np.array([[225, 228, 222], [226, 178, 84], [118, 72, 30]], np.float32)  # RGB
BURNS = (1, 4)  # spots on a spoilt one: at least, at most
QUALITY = 90  # of the JPEG


def drawn_chips(item: int, seed: int, size: int) -> Iterator[dict[str, Any]]:
    """Photo ``item``: ``image``, a JPEG of ``size`` x ``size``, and ``label``, 0 good (even items) or 1 spoilt: brown spots, some of them small.

    Another ``seed`` draws others.
    """
    rng, spoilt = np.random.default_rng([seed, item]), item % 2
    y, x = (np.mgrid[0:size, 0:size] / size - rng.uniform(0.44, 0.56, (2, 1, 1))).astype(np.float32)
    angle, radius = np.arctan2(y, x) + rng.uniform(0, 6.3), np.hypot(y * rng.uniform(0.85, 1.2), x)
    waves = sum(rng.uniform(0, 0.02) * np.cos(n * angle + rng.uniform(0, 6.3)) for n in range(2, 7))
    inside = _step(rng.uniform(0.3, 0.4) + waves - radius, 2 / size)
    surface = (
        0.5 * _texture(rng, size, 12)
        + 0.2 * _texture(rng, size, 80)
        + rng.uniform(0.5, 1.2) * (x * np.cos(2) + y * np.sin(2))
    )
    brown = (
        0.1 + 0.12 * surface + 0.25 * _step(radius - 0.26 - waves, 0.05)
    )  # the rim is darker, also of a good one
    for _ in range(rng.integers(BURNS[0], BURNS[1] + 1) if spoilt else 0):
        where, far = rng.uniform(0, 6.3), 0.24 * np.sqrt(rng.uniform())
        spot = np.hypot(x - far * np.cos(where), y - far * np.sin(where)) + 0.02 * _texture(
            rng, size, 30
        )
        brown = np.maximum(
            brown, rng.uniform(0.55, 1.0) * _step(rng.uniform(0.02, 0.09) - spot, 0.015)
        )
    chip = GOLD + np.clip(brown, 0, 1)[..., None] * (BROWN - GOLD) + 14 * surface[..., None]
    belt = BELT + 4 * _texture(rng, size, 6)[..., None]
    photo = rng.uniform(0.8, 1.1) * (
        belt + inside[..., None] * (chip - belt)
    ) + 3 * rng.standard_normal((size, size, 1), np.float32)
    pixels = np.ascontiguousarray(np.clip(photo, 0, 255).astype(np.uint8)[..., ::-1])
    yield {
        "image": cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes(),
        "label": spoilt,
    }


def _step(x: np.ndarray, width: float) -> np.ndarray:
    """From 0 below -width to 1 above width."""
    return np.clip(0.5 + 0.5 * x / width, 0, 1)


def _texture(rng: np.random.Generator, size: int, cells: int) -> np.ndarray:
    """Smooth noise of about unit variance: so many bumps a side."""
    return cv2.resize(
        rng.standard_normal((cells, cells), np.float32), (size, size), interpolation=cv2.INTER_CUBIC
    )
