"""Scales pixels by one filter, for reading and packing alike.

Shrinking is antialiased by a triangle filter over the source pixels under each result, like
bilinear resizing in Pillow and torchvision (within 1 level). Growing is linear. The filter is
``native/scale.c``. Without a compiler, it is torch's and OpenCV's.
"""

import cv2
import numpy as np
import torch
from torch.nn.functional import interpolate

from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN
from framework.media.slices import ANTIALIASED, LINEAR, NEAREST, scale_one

cv2.setNumThreads(0)  # our workers run in parallel; OpenCV's own threads would compete with them


def scale(image: np.ndarray, size: tuple[int, int], antialias: bool) -> np.ndarray:
    """Scale uint8 [H, W, C] to [*size, C].

    Without ``antialias``, each result is linear between the nearest four pixels.
    """
    if image.shape[:2] == size:
        return image
    out = np.empty((*size, image.shape[2]), np.uint8)
    if not scale_one(image, ANTIALIASED if antialias else LINEAR, 0, out, True):
        out[:] = _scaled(image, size, antialias)
    return out


def scale_labels(planes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scale a label map [C, H, W] to [C, *size] without making new values.

    Each result is the value of the pixel under its center.
    """
    if planes.shape[1:] == size:
        return planes
    for axis, new in enumerate(size, start=1):
        nearest = (2 * np.arange(new) + 1) * planes.shape[axis] // (2 * new)
        planes = planes.take(nearest, axis=axis)
    return planes


def scale_into(
    pixels: np.ndarray,
    antialias: bool,
    flip: int,
    out: np.ndarray,
    labels: bool = False,
    interleaved: bool = False,
) -> None:
    """Scale an image into memory of its own or of a batch.

    Args:
        pixels: uint8 [H, W, C], with any strides.
        antialias: see ``scale``.
        flip: as ``Transform.windows`` returns it.
        out: uint8 [C, h, w] or [h, w, C], which says the size.
        labels: whether this is a label map, to be scaled by ``scale_labels``.
        interleaved: whether ``out`` is [h, w, C].
    """
    how = ANTIALIASED if antialias else LINEAR
    how = NEAREST if labels else how
    if scale_one(pixels, how, flip, out, interleaved):
        return
    if flip & TURNED:
        pixels = pixels.swapaxes(0, 1)
    size = out.shape[:2] if interleaved else out.shape[1:]
    if labels:
        image = scale_labels(pixels.transpose(2, 0, 1), size).transpose(1, 2, 0)
    else:
        image = _scaled(pixels, size, antialias)
    rows, columns = (-1 if flip & code else 1 for code in (UPSIDE_DOWN, MIRRORED))
    image = image[::rows, ::columns]
    out[:] = image if interleaved else image.transpose(2, 0, 1)


def before_turn(flip: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a result before its rows and columns are exchanged, or after."""
    if flip & TURNED:
        return size[1], size[0]
    return size


def _scaled(image: np.ndarray, size: tuple[int, ...], antialias: bool) -> np.ndarray:
    """Return an image scaled without the compiled functions: at most 1 level away from theirs."""
    if image.shape[:2] == size:
        return image
    image = np.ascontiguousarray(image)
    if antialias and not (size[0] >= image.shape[0] and size[1] >= image.shape[1]):
        # With these strides torch sees a channels-last tensor and takes its fastest kernel.
        batch = torch.from_numpy(image).unsqueeze(0).permute(0, 3, 1, 2)
        scaled = interpolate(batch, size, mode="bilinear", antialias=True)[0]
        return scaled.permute(1, 2, 0).numpy()
    scaled = cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
    return scaled.reshape(*size, image.shape[2])
