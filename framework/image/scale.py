"""Scaling pixels: one filter for reading, packing and every backend that is ours.

Shrinking antialiased is a triangle filter over the source pixels under each result, as Pillow's and torchvision's bilinear are (within
1 level of Pillow's); torch's kernel does it in a third of the time of OpenCV's area filter and of Pillow. Growing is linear.
"""

import cv2
import numpy as np
import torch
from torch.nn.functional import interpolate

cv2.setNumThreads(0)  # our workers are the parallelism; OpenCV's own threads would fight them
FLIPS = {1: 1, 2: 0, 3: -1}  # our bits (1: mirrored, 2: upside down) in OpenCV's words


def scale(image: np.ndarray, size: tuple[int, int], antialias: bool) -> np.ndarray:
    """uint8 [H, W, C] -> uint8 [*size, C]. ``antialias`` False: linear between the nearest four, which aliases where it shrinks."""
    if image.shape[:2] == size:
        return image
    if not antialias or _grows(image.shape[:2], size):
        return cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR).reshape(
            *size, image.shape[2]
        )
    return _shrink(image.transpose(2, 0, 1), size).transpose(1, 2, 0)


def _grows(old: tuple[int, ...], new: tuple[int, int]) -> bool:
    return new[0] >= old[0] and new[1] >= old[1]


def _shrink(planes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [C, H, W], planes or interleaved in memory, -> [C, *size], likewise. Its pixels must be in one piece: copying the rows here is
    faster than the kernel's own copy.
    """
    if (
        planes.strides[0] < planes.strides[2]
    ):  # in this order of steps torch knows it for channels-last, and takes its fastest kernel
        whole = (
            torch.from_numpy(np.ascontiguousarray(planes.transpose(1, 2, 0)))
            .unsqueeze(0)
            .permute(0, 3, 1, 2)
        )
    else:
        whole = torch.from_numpy(np.ascontiguousarray(planes)).unsqueeze(0)
    return interpolate(whole, size, mode="bilinear", antialias=True)[0].numpy()


def scale_labels(planes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scale a label map [C, H, W] to [C, *size]: each result is the value of the pixel under its center, so no value is invented."""
    if planes.shape[1:] == size:
        return planes
    rows, columns = (_nearest(old, new) for old, new in zip(planes.shape[1:], size, strict=True))
    return planes.take(rows, axis=1).take(columns, axis=2)


def _nearest(old: int, new: int) -> np.ndarray:
    return (2 * np.arange(new) + 1) * old // (2 * new)


def scale_into(
    pixels: np.ndarray,
    interleaved: bool,
    size: tuple[int, int] | None,
    antialias: bool,
    flip: int,
    out: np.ndarray,
    labels: bool = False,
) -> None:
    """uint8 [H, W, C] (``interleaved``) or [C, H, W] into ``out`` [C, *size], scaled as by ``scale``; ``flip`` bit 0: mirrored, bit 1:
    upside down. ``labels``: scaled as by ``scale_labels``.
    """
    planes = pixels.transpose(2, 0, 1) if interleaved else pixels
    if labels and size is not None:
        planes = scale_labels(planes, size)
    if size is None or planes.shape[1:] == size:
        _place(planes, flip, out)
    elif antialias and not _grows(planes.shape[1:], size):
        _place(_shrink(planes, size), flip, out)
    elif interleaved:
        _place(scale(pixels, size, antialias).transpose(2, 0, 1), flip, out)
    else:
        for plane, target in zip(planes, out, strict=True):
            cv2.resize(plane, (size[1], size[0]), dst=target, interpolation=cv2.INTER_LINEAR)
        if flip:
            _place(out, flip, out)


def _place(planes: np.ndarray, flip: int, out: np.ndarray) -> None:
    """[C, H, W], planes or interleaved in memory, into ``out``."""
    if planes.strides[0] < planes.strides[2]:
        image = np.ascontiguousarray(planes.transpose(1, 2, 0))
        cv2.split(
            cv2.flip(image, FLIPS[flip]) if flip else image, list(out)
        )  # a quarter of the time of a transposed copy
    elif flip:
        for plane, target in zip(planes, out, strict=True):
            cv2.flip(plane, FLIPS[flip], dst=target)
    else:
        np.copyto(out, planes)
