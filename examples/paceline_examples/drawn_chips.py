"""Drawn photos of potato chips, good and spoilt. Use it with ``input=function``."""

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

BELT, GOLD, BROWN = np.array([[225, 228, 222], [226, 178, 84], [118, 72, 30]], np.float32)  # RGB
BURNS = (1, 4)  # the fewest and the most spots on a spoilt chip
QUALITY = 90  # of the JPEG


def drawn_chips(item: int, seed: int, size: int) -> Iterator[dict[str, Any]]:
    """Yield photo ``item``: ``image``, a JPEG of ``size`` x ``size``, and ``label``.

    Even items are good (0). Odd ones are spoilt (1) and have brown spots, some of them small.
    """
    rng = np.random.default_rng([seed, item])
    spoilt = item % 2
    y, x = (np.mgrid[0:size, 0:size] / size - rng.uniform(0.44, 0.56, (2, 1, 1))).astype(np.float32)
    angle = np.arctan2(y, x) + rng.uniform(0, 6.3)
    radius = np.hypot(y * rng.uniform(0.85, 1.2), x)
    waves = sum(rng.uniform(0, 0.02) * np.cos(n * angle + rng.uniform(0, 6.3)) for n in range(2, 7))
    inside = _step(rng.uniform(0.3, 0.4) + waves - radius, 2 / size)
    surface = 0.5 * _texture(rng, size, 12) + 0.2 * _texture(rng, size, 80)
    surface = surface + rng.uniform(0.5, 1.2) * (x * np.cos(2) + y * np.sin(2))
    # The rim of a good chip is darker, too.
    brown = 0.1 + 0.12 * surface + 0.25 * _step(radius - 0.26 - waves, 0.05)
    for _ in range(rng.integers(BURNS[0], BURNS[1] + 1) if spoilt else 0):
        direction = rng.uniform(0, 6.3)
        far = 0.24 * np.sqrt(rng.uniform())
        spot = np.hypot(x - far * np.cos(direction), y - far * np.sin(direction))
        spot = spot + 0.02 * _texture(rng, size, 30)
        burn = rng.uniform(0.55, 1.0) * _step(rng.uniform(0.02, 0.09) - spot, 0.015)
        brown = np.maximum(brown, burn)
    chip = GOLD + np.clip(brown, 0, 1)[..., None] * (BROWN - GOLD) + 14 * surface[..., None]
    belt = BELT + 4 * _texture(rng, size, 6)[..., None]
    photo = rng.uniform(0.8, 1.1) * (belt + inside[..., None] * (chip - belt))
    photo = photo + 3 * rng.standard_normal((size, size, 1), np.float32)
    pixels = np.ascontiguousarray(np.clip(photo, 0, 255).astype(np.uint8)[..., ::-1])
    jpeg = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1]
    yield {"image": jpeg.tobytes(), "label": spoilt}


def _step(x: np.ndarray, width: float) -> np.ndarray:
    """Return a smooth step: 0 below -width, 1 above width."""
    return np.clip(0.5 + 0.5 * x / width, 0, 1)


def _texture(rng: np.random.Generator, size: int, cells: int) -> np.ndarray:
    """Return smooth noise of about unit variance, with ``cells`` bumps a side."""
    noise = rng.standard_normal((cells, cells), np.float32)
    return cv2.resize(noise, (size, size), interpolation=cv2.INTER_CUBIC)
