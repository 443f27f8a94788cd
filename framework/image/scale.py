"""Scales pixels by one filter, for reading and packing alike.

Shrinking is antialiased by a triangle filter over the source pixels under each result, like
bilinear resizing in Pillow (within 1 level) and torchvision. torch's kernel takes a third of the
time of OpenCV's area filter and of Pillow. Growing is linear.
"""

import cv2
import numpy as np
import torch
from torch.nn.functional import interpolate

from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN

cv2.setNumThreads(0)  # our workers run in parallel; OpenCV's own threads would compete with them
FLIPS = {MIRRORED: 1, UPSIDE_DOWN: 0, MIRRORED | UPSIDE_DOWN: -1}  # to OpenCV's codes


def scale(image: np.ndarray, size: tuple[int, int], antialias: bool) -> np.ndarray:
    """Scale uint8 [H, W, C] to [*size, C].

    Without ``antialias``, each result is linear between the nearest four pixels.
    """
    if image.shape[:2] == size:
        return image
    if antialias and not _grows(image.shape[:2], size):
        return _shrink(image.transpose(2, 0, 1), size).transpose(1, 2, 0)
    scaled = cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
    return scaled.reshape(*size, image.shape[2])


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
    interleaved: bool,
    size: tuple[int, int] | None,
    antialias: bool,
    flip: int,
    out: np.ndarray,
    labels: bool = False,
) -> None:
    """Scale an image into a batch's memory.

    Args:
        pixels: uint8 [H, W, C] or [C, H, W].
        interleaved: whether it is [H, W, C].
        size: height and width of the result; None: those of the image.
        antialias: see ``scale``.
        flip: as ``Transform.windows`` returns it.
        out: uint8 [C, *size].
        labels: whether this is a label map, to be scaled by ``scale_labels``.
    """
    if flip & TURNED:
        pixels = np.ascontiguousarray(np.swapaxes(pixels, *((0, 1) if interleaved else (1, 2))))
        flip &= ~TURNED
    planes = pixels.transpose(2, 0, 1) if interleaved else pixels
    if labels and size is not None:
        planes = scale_labels(planes, size)
    if size is None or planes.shape[1:] == size:
        put_planes(planes, flip, out)
    elif antialias and not _grows(planes.shape[1:], size):
        put_planes(_shrink(planes, size), flip, out)
    elif interleaved:
        put_planes(scale(pixels, size, antialias).transpose(2, 0, 1), flip, out)
    else:
        for plane, target in zip(planes, out, strict=True):
            cv2.resize(plane, (size[1], size[0]), dst=target, interpolation=cv2.INTER_LINEAR)
        if flip:
            put_planes(out, flip, out)


def scaled_image(
    pixels: np.ndarray,
    interleaved: bool,
    size: tuple[int, int] | None,
    antialias: bool,
    flip: int,
    labels: bool = False,
) -> np.ndarray:
    """Return what ``scale_into`` writes as [*size, C], contiguous and in memory of its own."""
    if not interleaved or labels:
        height, width = pixels.shape[:2] if interleaved else pixels.shape[1:]
        height_width = size or before_turn(flip, (height, width))
        planes = np.empty((pixels.shape[2 if interleaved else 0], *height_width), np.uint8)
        scale_into(pixels, interleaved, size, antialias, flip, planes, labels)
        # Merging takes a thirtieth of the time of a transposed copy.
        return cv2.merge(list(planes)).reshape(*height_width, len(planes))
    if flip & TURNED:
        pixels = np.swapaxes(pixels, 0, 1)
    image = pixels if size is None else scale(pixels, size, antialias)
    if code := flip & ~TURNED:
        return cv2.flip(np.ascontiguousarray(image), FLIPS[code]).reshape(image.shape)
    return np.array(image, order="C")


def before_turn(flip: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a result before its rows and columns are exchanged, or after."""
    if flip & TURNED:
        return size[1], size[0]
    return size


def _grows(old: tuple[int, ...], new: tuple[int, int]) -> bool:
    return new[0] >= old[0] and new[1] >= old[1]


def _shrink(planes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Shrink uint8 [C, H, W], planar or interleaved in memory, to [C, *size]."""
    # The kernel needs contiguous pixels. Copying the rows here is faster than its own copy.
    if _is_interleaved(planes):
        # With these strides torch sees a channels-last tensor and takes its fastest kernel.
        image = torch.from_numpy(np.ascontiguousarray(planes.transpose(1, 2, 0)))
        batch = image.unsqueeze(0).permute(0, 3, 1, 2)
    else:
        batch = torch.from_numpy(np.ascontiguousarray(planes)).unsqueeze(0)
    return interpolate(batch, size, mode="bilinear", antialias=True)[0].numpy()


def put_planes(planes: np.ndarray, flip: int, out: np.ndarray) -> None:
    """Copy uint8 [C, H, W], planar or interleaved in memory, into ``out``, and flip it."""
    if _is_interleaved(planes):
        image = np.ascontiguousarray(planes.transpose(1, 2, 0))
        # Splitting takes a quarter of the time of a transposed copy.
        cv2.split(cv2.flip(image, FLIPS[flip]) if flip else image, list(out))
    elif flip:
        for plane, target in zip(planes, out, strict=True):
            cv2.flip(plane, FLIPS[flip], dst=target)
    else:
        np.copyto(out, planes)


def _is_interleaved(planes: np.ndarray) -> bool:
    return planes.strides[0] < planes.strides[2]
