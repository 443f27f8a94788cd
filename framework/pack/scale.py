"""Gray images from memory, scaled for packing."""

from collections.abc import Sequence

import cv2
import numpy as np


def scaled(images: np.ndarray, size: Sequence[int] | None) -> np.ndarray:
    """uint8 [N, H, W] -> uint8 [N, 1, *size], by linear interpolation; ``size`` None: unscaled."""
    if size is not None:
        images = np.stack([cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR) for image in images])
    return np.ascontiguousarray(images[:, None])
