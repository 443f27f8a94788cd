"""What charts show of a report and of the sample batch: numbers by name, and pictures."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch, tensors
from framework.contracts.training import Report
from framework.system.durable import write_bytes

CELLS = 256  # pixels of the longer side of an array's picture


def learned_values(report: Report) -> dict[str, float]:
    """Return means and learning rate as ``loss/val``, so that splits share a chart."""
    values = {f"{name}/{report.split}": value for name, value in report.means.items()}
    if report.split == "train":
        values["lr/train"] = report.learning_rate or 0.0
    return values


def measured_values(report: Report) -> dict[str, float]:
    """Return the speed of a report, and for training its spans, stages and usage."""
    values = {f"records_per_s/{report.split}": report.records_per_s}
    if report.split != "train":
        return values
    for name, span in report.spans.items():
        values[f"span/{name}_s"] = span.mean_s
        values[f"span_p50/{name}_s"] = span.p50_s
        values[f"span_p90/{name}_s"] = span.p90_s
    values |= {f"stage/{name}_s": seconds for name, seconds in report.stages_s.items()}
    values |= {f"share/{name}": share for name, share in report.content.items()}
    values |= {f"usage/{name}": value for name, value in report.usage.items()}
    if report.ranks is not None:
        for name, span in report.ranks.spans.items():
            values[f"span_ranks/{name}_min_s"] = span.min_s
            values[f"span_ranks/{name}_max_s"] = span.max_s
    optional = {
        "stage/ready": report.ready,
        "usage/skipped_steps": report.skipped or None,
        "time_left/epoch_records": report.epoch_left,
        "time_left/run_s": report.left_s,
    }
    return values | {name: value for name, value in optional.items() if value is not None}


def sample_pictures(sample: Batch, count: int) -> dict[str, Tensor]:
    """Return the first records of each field of images: uint8 [count, 1 or 3, H, W] by name."""
    return {
        name: value[:count]
        for name, value in tensors(sample).items()
        if value.dtype == torch.uint8 and value.dim() == 4 and value.shape[1] in (1, 3)
    }


def write_pictures(sample: Batch, count: int, folder: Path) -> list[Path]:
    """Write a PNG file for each field of images, ``sample-NAME.png``, and return the paths."""
    paths: list[Path] = []
    for name, images in sample_pictures(sample, count).items() if count else ():
        paths.append(folder / f"sample-{_plain(name)}.png")
        write_grid_picture(paths[-1], images)
    return paths


def write_grid_picture(path: Path, images: Tensor) -> None:
    """Write images, uint8 [count, 1 or 3, H, W], as one PNG file: row by row."""
    count, channels, height, width = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    tiles = np.zeros((rows * columns, channels, height, width), np.uint8)
    tiles[:count] = images.cpu().numpy()[:, ::-1]  # OpenCV's order of colors
    grid = tiles.reshape(rows, columns, channels, height, width).transpose(0, 3, 1, 4, 2)
    picture = np.ascontiguousarray(grid.reshape(rows * height, columns * width, channels))
    write_bytes(path, cv2.imencode(".png", picture)[1].tobytes())


def array_picture(array: Tensor) -> Tensor | None:
    """Return an array of one or two dimensions as a picture, uint8 [1, H, W]; None for others.

    The largest value of each row is black, so a good confusion matrix has a dark diagonal.
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
            paths.append(folder / f"{_plain(name)}-{_plain(split)}.png")
            write_grid_picture(paths[-1], picture.unsqueeze(0))
    return paths


def _plain(name: str) -> str:
    """Return a name for a file: a field or a metric may have any name."""
    return re.sub(r"[^\w.-]", "_", name)
