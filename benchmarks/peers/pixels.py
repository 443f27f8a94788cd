"""What the hand-written datasets do to one image: decode, cut a random window, scale, flip."""

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
    """JPEG bytes -> uint8 [H, W, 3], by libjpeg-turbo."""
    return simplejpeg.decode_jpeg(data, colorspace="RGB")


def scaled(part: np.ndarray, antialias: bool) -> np.ndarray:
    """uint8 [h, w, 3] -> [SIZE, SIZE, 3]; shrinking by area where ``antialias``, else linear."""
    shrinking = part.shape[0] > SIZE or part.shape[1] > SIZE
    return cv2.resize(
        part,
        (SIZE, SIZE),
        interpolation=cv2.INTER_AREA if antialias and shrinking else cv2.INTER_LINEAR,
    )


def random_crop(image: np.ndarray, antialias: bool) -> Tensor:
    """uint8 [H, W, 3] -> uint8 [3, SIZE, SIZE], a view that collating makes contiguous: one copy, not two."""
    top, left, height, width = random_window(*image.shape[:2])
    image = scaled(image[top : top + height, left : left + width], antialias)
    if random.random() < FLIP:
        image = cv2.flip(image, 1)
    return torch.from_numpy(image).permute(2, 0, 1)
