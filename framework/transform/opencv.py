"""Random shift and mirror with OpenCV, one record at a time, to compare with crop_flip."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import cv2
import numpy as np

from framework.contracts.data import Transform, chance
from framework.contracts.records import IGNORE
from framework.transform.function import Images


@final
@dataclass(frozen=True)
class ShiftFlip:
    """A ``RecordFunction`` that pads, cuts a window of the old size, and mirrors at random."""

    padding: int
    flip: float
    labels: Sequence[str] = ()  # label maps, which are ``IGNORE`` where the image is black

    def with_labels(self, labels: Sequence[str]) -> "ShiftFlip":
        return replace(self, labels=labels)

    def __call__(self, images: Images, seed: int | None) -> Images:
        if seed is None:
            return images
        rng = np.random.default_rng(seed)
        top, left = rng.integers(0, 2 * self.padding + 1, 2).tolist()
        step = -1 if rng.random() < self.flip else 1
        pad = self.padding
        results: Images = {}
        for name, image in images.items():
            height, width, channels = image.shape
            fill = IGNORE if name in self.labels else 0
            wide = cv2.copyMakeBorder(image, pad, pad, pad, pad, cv2.BORDER_CONSTANT, value=fill)
            wide = wide.reshape(*wide.shape[:2], channels)
            window = wide[top : top + height, left : left + width][:, ::step]
            results[name] = np.ascontiguousarray(window)
        return results


@final
class OpenCVTransform(Transform):
    """``padding``: pixels on every side; ``flip``: probability of a mirror image.

    Fields of one record, such as a pair, are changed alike. Nothing changes outside training.
    """

    def __init__(self, padding: int, flip: float) -> None:
        if padding < 0:
            raise ValueError(f"padding = {padding} must be at least 0")
        self.function = ShiftFlip(padding, chance("flip", flip))
