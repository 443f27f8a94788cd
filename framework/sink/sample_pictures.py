"""Pictures for sinks: of the sample batch of a run, and of metrics that are arrays."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch, tensors
from framework.system.durable import write_bytes

CELLS = 256  # pixels of the longer side of an array's picture


def sample_pictures(sample: Batch, count: int) -> dict[str, Tensor]:
    """Return the first records of each field of images: uint8 [count, 1 or 3, H, W] by name."""
    return {name: value[:count] for name, value in tensors(sample).items() if _is_image(value)}


def write_pictures(sample: Batch, count: int, folder: Path) -> list[Path]:
    """Write a PNG file for each field of images, ``sample-NAME.png``, and return the paths."""
    if not count:
        return []
    paths: list[Path] = []
    for name, images in sample_pictures(sample, count).items():
        path = folder / f"sample-{_plain(name)}.png"
        write_grid_picture(path, images)
        paths.append(path)
    return paths


def write_grid_picture(path: Path, images: Tensor) -> None:
    """Write images, uint8 [count, 1 or 3, H, W], as one PNG file: row by row."""
    _write(path, _grid(images.cpu().numpy()))


def array_picture(array: Tensor) -> Tensor | None:
    """Return an array of one or two dimensions as a picture, uint8 [1, H, W]; None for others.

    Zero and less are white, and the largest value of each row is black. So a confusion matrix is
    dark on its diagonal, however many records each class has.
    """
    if not 1 <= array.dim() <= 2 or not array.numel():
        return None
    rows = array.nan_to_num(0.0, 0.0, 0.0).double().clamp(min=0).reshape(-1, array.shape[-1])
    shares = rows / rows.amax(1, keepdim=True).clamp(min=1e-300)
    cell = max(1, CELLS // max(rows.shape))
    shades = (255 * (1 - shares)).to(torch.uint8)
    return shades.repeat_interleave(cell, 0).repeat_interleave(cell, 1).unsqueeze(0)


def write_arrays(arrays: Mapping[str, Tensor], split: str, folder: Path) -> list[Path]:
    """Write a PNG file for each array that is a picture, ``NAME-SPLIT.png``; return the paths."""
    paths: list[Path] = []
    for name, array in arrays.items():
        picture = array_picture(array)
        if picture is not None:
            path = folder / f"{_plain(name)}-{_plain(split)}.png"
            _write(path, picture[0].cpu().numpy())
            paths.append(path)
    return paths


def _plain(name: str) -> str:
    """Return a name for a file: a field or a metric may have any name."""
    return re.sub(r"[^\w.-]", "_", name)


def _write(path: Path, picture: np.ndarray) -> None:
    write_bytes(path, cv2.imencode(".png", picture)[1].tobytes())


def _grid(images: np.ndarray) -> np.ndarray:
    """Return one picture [H, W, 1 or 3] (blue, green, red) of images [count, channels, H, W]."""
    count, channels, height, width = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    tiles = np.zeros((rows * columns, channels, height, width), np.uint8)
    tiles[:count] = images[:, ::-1]
    grid = tiles.reshape(rows, columns, channels, height, width).transpose(0, 3, 1, 4, 2)
    return np.ascontiguousarray(grid.reshape(rows * height, columns * width, channels))


def _is_image(tensor: Tensor) -> bool:
    """Return whether a field is uint8 [B, 1 or 3, H, W]."""
    return tensor.dtype == torch.uint8 and tensor.dim() == 4 and tensor.shape[1] in (1, 3)
