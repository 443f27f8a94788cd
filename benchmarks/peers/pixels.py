"""Operations of the hand-written datasets on an image: decode, cut a window, scale, flip."""

import random
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from peers.work import FLIP, SIZE, random_window
from torch import Tensor

cv2.setNumThreads(0)  # the workers are the parallelism


def decoded(data: Any) -> np.ndarray:
    """Decode a JPEG with libjpeg-turbo. Return uint8 [H, W, 3]."""
    return simplejpeg.decode_jpeg(data, colorspace="RGB")


def scaled(part: np.ndarray, antialias: bool) -> np.ndarray:
    """Scale uint8 [h, w, 3] to [SIZE, SIZE, 3].

    Shrinking averages areas if ``antialias`` is set. Otherwise, scaling is linear.
    """
    shrinking = part.shape[0] > SIZE or part.shape[1] > SIZE
    return cv2.resize(
        part,
        (SIZE, SIZE),
        interpolation=cv2.INTER_AREA if antialias and shrinking else cv2.INTER_LINEAR,
    )


def random_crop(image: np.ndarray, antialias: bool) -> Tensor:
    """Cut a random window out of uint8 [H, W, 3], scale it and flip half of all images.

    Returns:
        uint8 [3, SIZE, SIZE]. It is a view that collating makes contiguous, which saves a copy.
    """
    top, left, height, width = random_window(*image.shape[:2])
    image = scaled(image[top : top + height, left : left + width], antialias)
    if random.random() < FLIP:
        image = cv2.flip(image, 1)
    return torch.from_numpy(image).permute(2, 0, 1)
