"""Draw a picture of some records of a store: their images, and curves for series of numbers."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from framework.contracts.records import Field, RecordStore
from framework.errors import DataError
from framework.media.decode import BadImage, decode_shrunk
from framework.media.frame_files import BadFrames, frames_of
from framework.media.label_map import decode_labels, label_colors
from framework.order.batches import spread
from framework.store.open_store import open_records
from framework.system.durable import open_durable

TILE = 96  # pixels
EDGE = 3  # pixels: the gray edge of a tile that keeps neighbors apart
GRAY = 96
DARK = 24
MIN_SERIES = 8  # numbers: a shorter field is not drawn as a curve
CURVES = ((120, 200, 255), (255, 190, 90), (150, 230, 130), (240, 140, 200))  # RGB


def write_grid(path: str, grid: Path, count: int) -> bool:
    """Write a PNG of up to ``count`` evenly spread records; return False if no field can be drawn.

    Images are drawn, the middle frames of videos, and series of shape [T] or [C, T]. The fields of
    a record are side by side.
    """
    store = open_records(path)
    strips = _strips(store, count)
    store.close()
    if not strips:
        return False
    columns = math.ceil(math.sqrt(len(strips) / (strips[0].shape[1] // TILE)))
    strips += [np.full_like(strips[0], GRAY)] * (-len(strips) % columns)
    rows = [np.hstack(strips[start : start + columns]) for start in range(0, len(strips), columns)]
    with open_durable(grid) as file:
        file.write(cv2.imencode(".png", np.vstack(rows)[:, :, ::-1])[1].tobytes())
    return True


def _strips(store: RecordStore, count: int) -> list[np.ndarray]:
    """Return for each record the tiles of its fields in a row, RGB."""
    fields = store.manifest.fields
    drawn = [name for name, field in fields.items() if _is_image(field) or _is_series(field)]
    if not drawn:
        return []
    num_records = store.manifest.num_records
    indices = spread(num_records, min(count, num_records))
    records = store.read(indices)
    strips: list[np.ndarray] = []
    for row, index in enumerate(indices.tolist()):
        record = {name: records[name][row] for name in drawn}
        try:
            strips.append(_strip(record, fields))
        except (BadImage, BadFrames) as error:
            what = f"is not a readable image ({error})"
            raise DataError(106, store.name(index), what, "repair or remove it") from error
    return strips


def _strip(record: Mapping[str, Any], fields: Mapping[str, Field]) -> np.ndarray:
    """Return the tiles of a record in a row: of its images, then of its series."""
    images = [name for name in record if _is_image(fields[name])]
    series = [name for name in record if _is_series(fields[name])]
    tiles = [_image_tile(_picture(record[name], fields[name])) for name in images]
    values = [np.atleast_2d(record[name].numpy()).astype(np.float64) for name in series]
    return np.hstack([*tiles, *_curve_tiles(values)])


def _is_image(field: Field) -> bool:
    deep = field.dtype == "uint16" and len(field.shape) == 3 and field.shape[0] in (1, 3)
    is_picture = field.channels is not None or field.kind == "video"
    return (is_picture or deep) and 0 not in field.shape


def _is_series(field: Field) -> bool:
    is_number = field.encoding == "raw" and np.dtype(field.dtype).kind in "iuf"
    *channels, length = field.shape or (0,)
    is_line = not channels or (len(channels) == 1 and (channels[0] or 0) <= len(CURVES))
    return is_number and is_line and (length or 0) >= MIN_SERIES


def _picture(value: torch.Tensor | memoryview, field: Field) -> np.ndarray:
    """Return uint8 [H, W, C]: an image, or the middle frame of a video."""
    if field.kind != "video":
        return _pixels(value, field)
    frames = frames_of(value, field)
    middle = frames[len(frames) // 2]
    if isinstance(middle, np.ndarray):
        return middle
    return _pixels(middle, field.frame)


def _pixels(value: torch.Tensor | memoryview, field: Field) -> np.ndarray:
    """Return uint8 [H, W, C]; a label map has a color for each class."""
    if isinstance(value, torch.Tensor):
        if not field.interleaved:
            value = value.permute(1, 2, 0)
        pixels = value.numpy()
        if field.kind == "labels":
            return label_colors()[pixels[:, :, 0]]
        if pixels.dtype == np.uint16:
            return (pixels // 257).astype(np.uint8)
        return pixels
    if field.kind == "labels":
        return label_colors()[decode_labels(value)[:, :, 0]]
    return decode_shrunk(value, field.shape[0] or 3, (TILE, TILE))


def _image_tile(image: np.ndarray) -> np.ndarray:
    """Fit an image into a tile without distorting it. Small images grow, large ones shrink."""
    height, width = image.shape[:2]
    factor = (TILE - 2 * EDGE) / max(height, width)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    method = cv2.INTER_AREA if factor < 1 else cv2.INTER_NEAREST
    scaled = cv2.resize(image, size, interpolation=method)
    tile = np.full((TILE, TILE, 3), GRAY, np.uint8)
    tile[EDGE : EDGE + size[1], EDGE : EDGE + size[0]] = scaled.reshape(size[1], size[0], -1)
    return tile


def _curve_tiles(series: list[np.ndarray]) -> list[np.ndarray]:
    """Return a tile for each [C, T]. All series of a record have one scale."""
    numbers = np.concatenate([np.zeros(0), *(values.ravel() for values in series)])
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        numbers = np.zeros(1)
    low = float(numbers.min())
    high = float(numbers.max())
    return [_curve_tile(values, low, high) for values in series]


def _curve_tile(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Draw a line per channel of [C, T], with ``high`` at the top and ``low`` at the bottom."""
    inner = TILE - 2 * EDGE
    plot = np.full((inner, inner, 3), DARK, np.uint8)
    finite = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    heights = (high - finite) / ((high - low) or 1.0) * (inner - 1)  # from the top
    for color, line in zip(CURVES, heights, strict=False):
        points = [_points(line, inner)]
        cv2.polylines(plot, points, isClosed=False, color=color, lineType=cv2.LINE_AA)
    tile = np.full((TILE, TILE, 3), GRAY, np.uint8)
    tile[EDGE:-EDGE, EDGE:-EDGE] = plot
    return tile


def _points(line: np.ndarray, width: int) -> np.ndarray:
    """Return (x, y) as int32 [N, 1, 2]: every number, or each column's least and greatest."""
    x = np.linspace(0, width - 1, len(line))
    if len(line) > 2 * width:
        columns = np.array_split(line, width)
        line = np.array([end for part in columns for end in (part.min(), part.max())])
        x = np.repeat(np.arange(width), 2)
    return np.stack([x, line], axis=1).round().astype(np.int32)[:, None]
