"""Random shift and mirror with OpenCV, one record at a time on the host: what many a Dataset's ``__getitem__`` does.

``augment=crop_flip`` makes the same change to a whole batch at once; this is what it is compared with (recipes sweep_vectorized and
sweep_augment, docs/bottlenecks.md).
"""

from typing import final

import cv2
import numpy as np
from torch import Tensor

from framework.contracts import RecordFunction
from framework.transform.flip import chance
from framework.transform.function import Images
from framework.transform.none import whole


@final
class ShiftFlip:
    """A ``RecordFunction``: ``padding`` black pixels on every side, a window of the old size at a random place, mirrored at random."""

    def __init__(self, padding: int, flip: float) -> None:
        self.padding, self.flip = padding, flip

    def __call__(self, images: Images, seed: int | None) -> Images:
        if seed is None:
            return images
        rng = np.random.default_rng(seed)
        top, left = rng.integers(0, 2 * self.padding + 1, 2).tolist()
        mirrored = rng.random() < self.flip
        return {name: self._changed(image, top, left, mirrored) for name, image in images.items()}

    def _changed(self, image: np.ndarray, top: int, left: int, mirrored: bool) -> np.ndarray:
        height, width, channels = image.shape
        side = self.padding
        wide = cv2.copyMakeBorder(image, side, side, side, side, cv2.BORDER_CONSTANT)
        window = wide.reshape(*wide.shape[:2], channels)[top : top + height, left : left + width]
        return np.ascontiguousarray(window[:, ::-1] if mirrored else window)


@final
class OpenCVTransform:
    """``padding``: pixels on every side; ``flip``: probability. Fields of one record, a pair's, are changed alike; outside training none is."""

    size: tuple[int, int] | None = None
    antialias = True
    num_draws = 0

    def __init__(self, padding: int, flip: float) -> None:
        if padding < 0:
            raise ValueError(f"padding = {padding} is negative")
        self.function: RecordFunction | None = ShiftFlip(padding, chance("flip", flip))

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        return whole(sizes)
