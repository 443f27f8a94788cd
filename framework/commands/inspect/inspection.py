"""Describe what a store holds: lines of text, JSON, and a picture of some records."""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from framework.contracts.records import Field, Ragged, RecordStore
from framework.errors import DataError, printable
from framework.media.decode import decode, decode_labels, label_colors
from framework.media.header import BadImage, read_header
from framework.media.sound_video import BadFrames, frames_of
from framework.order.batches import spread
from framework.store.open_store import files_of, open_records
from framework.system.durable import open_durable

EXACT_BYTES = 1 << 28  # of a larger store only a sample of the fields of any length is read
NUM_SAMPLES = 2048
BATCH = 256
BAR = 40  # characters of the largest class
MOST_BARS = 20  # a store with more classes has a summary instead
KINDS = {"raw": "", "image": "", "labels": "label map, "}  # the encoding says the first two
MAX_FILES = 10  # of a directory, that are listed
TILE = 96  # pixels
EDGE = 3  # pixels: the gray edge of a tile that keeps neighbors apart
INNER = TILE - 2 * EDGE
GRAY = 96
DARK = 24
MIN_SERIES = 8  # numbers: a shorter field is not drawn as a curve
CURVES = ((120, 200, 255), (255, 190, 90), (150, 230, 130), (240, 140, 200))  # RGB


def facts(path: str) -> dict[str, Any]:
    """Return what a store holds, as values for JSON: its manifest, files, fields and classes.

    ``images``, ``videos`` and ``ragged`` tell what varies from record to record, by field: bytes of
    an image file, frames of a video, rows of an array; ``height`` and ``width`` are [least, most].
    DataError if there is no store.
    """
    store = open_records(path)
    manifest = store.manifest
    size_bytes = sum(os.path.getsize(file) for file in files_of(path) if os.path.isfile(file))
    known: dict[str, Any] = {"path": path, "size_bytes": size_bytes, **asdict(manifest)}
    known |= {"images": {}, "videos": {}, "ragged": {}, "class_summary": None}
    count = manifest.num_records
    if size_bytes > EXACT_BYTES:
        count = min(NUM_SAMPLES, count)
    for name, varies in _varying(store, count).items():
        kind = "images" if manifest.fields[name].encoding == "image" else "ragged"
        if manifest.fields[name].kind == "video":
            kind = "videos"
        known[kind][name] = varies
    store.close()
    if manifest.class_counts:
        pairs = zip(manifest.classes, manifest.class_counts, strict=True)
        sizes = [(name, count) for name, count in pairs if count]
        smallest = min(sizes, key=itemgetter(1), default=None)
        largest = max(sizes, key=itemgetter(1), default=None)
        known["class_summary"] = {  # in records; the smallest and the largest are name and size
            "num_classes": len(manifest.classes),
            "num_empty": len(manifest.classes) - len(sizes),
            "smallest": smallest,
            "largest": largest,
            "imbalance": largest[1] / smallest[1] if smallest and largest else None,
        }
    return known


def _varying(store: RecordStore, count: int) -> dict[str, dict[str, Any]]:
    """Return lengths of values, and sizes of images, of ``count`` evenly spread records."""
    num_records, fields = store.manifest.num_records, store.manifest.fields
    names = [name for name, field in fields.items() if field.encoding != "raw"]
    lengths: dict[str, list[int]] = {name: [] for name in names}
    sizes: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}
    for part in spread(num_records, count).split(BATCH) if names else ():
        records = store.read(part)
        for name in names:
            if isinstance(records[name], Ragged):
                lengths[name] += records[name].lengths.tolist()
                continue
            for data in records[name]:
                with suppress(BadFrames, BadImage):
                    first, length = data, len(data)
                    if fields[name].kind == "video":
                        frames: Any = frames_of(data, fields[name])
                        first, length = frames[0], len(frames)
                    lengths[name].append(length)
                    is_array = isinstance(first, np.ndarray)
                    sizes[name].append(first.shape[:2] if is_array else read_header(first).size)
    varying: dict[str, dict[str, Any]] = {}
    for name in names:
        own = lengths[name]
        result = varying[name] = {"num_looked_at": len(own), "is_sample": len(own) < num_records}
        unit = "record_bytes" if fields[name].encoding == "image" else "record_rows"
        if fields[name].kind == "video":
            unit = "record_frames"
        if own:
            result[unit] = {"mean": sum(own) / len(own), "min": min(own), "max": max(own)}
        if unit != "record_rows":
            result["num_unreadable"] = len(own) - len(sizes[name])
        for key, sides in zip(("height", "width"), zip(*sizes[name], strict=True), strict=False):
            result[key] = [min(sides), max(sides)]
    return varying


def describe(known: Mapping[str, Any]) -> list[str]:
    """Return lines about manifest, files, fields and classes, from what ``facts`` returns."""
    num_records, size_bytes = known["num_records"], known["size_bytes"]
    size = f"{num_records:,} records, {size_bytes:,} bytes, schema {known['schema']}"
    lines = [f"{known['path']}: {size}", f"source: {known['source']}"]
    if options := known["options"]:
        lines.append(f"options: {', '.join(f'{name}={value}' for name, value in options.items())}")
    if known["digest"]:
        lines.append(f"digest: sha256 {known['digest']}")
    shards = known["shards"]
    for shard in shards[:MAX_FILES]:
        held = f"{shard['num_records']:,} records, {shard['size_bytes']:,} bytes"
        lines.append(f"file {shard['name']}: {held}, sha256 {shard['sha256']}")
    if len(shards) > MAX_FILES:
        lines.append(f"and {len(shards) - MAX_FILES} more files, {len(shards)} in all")
    varying = {**known["images"], **known["videos"], **known["ragged"]}
    for name, given in known["fields"].items():
        field = Field(**given)
        shape = "x".join("?" if side is None else str(side) for side in field.shape) or "scalar"
        kind = KINDS.get(field.kind, f"{field.kind}, ")
        words = _lengths(field, varying.get(name), num_records)
        lines.append(f"field {name}: {kind}{field.encoding} {field.dtype} {shape}, {words}")
    classes, counts, summary = known["classes"], known["class_counts"], known["class_summary"]
    if len(classes) > MOST_BARS:
        line = f"classes: {len(classes):,}"
        if summary and summary["num_empty"]:
            line += f", {summary['num_empty']:,} of them without a record"
        if summary and summary["smallest"]:
            (small, least), (large, most) = summary["smallest"], summary["largest"]
            line += f"; smallest {small} ({least:,} records), largest {large} ({most:,})"
            line += f", imbalance {summary['imbalance']:.3g}"
        lines.append(f"{line}; --json lists them")
    elif not counts:
        lines += [f"class {number}: {name}" for number, name in enumerate(classes)]
    else:
        width, digits = max(map(len, classes)), len(f"{max(counts):,}")
        for number, (name, count) in enumerate(zip(classes, counts, strict=True)):
            bar = "#" * math.ceil(BAR * count / max(1, *counts))
            line = f"class {number}: {name:{width}}  {count:>{digits},} records  {bar}"
            lines.append(line.rstrip())
    return list(map(printable, lines))


def _lengths(field: Field, varies: Mapping[str, Any] | None, num_records: int) -> str:
    item_bytes = np.dtype(field.dtype).itemsize
    if varies is None:
        size = item_bytes * math.prod(side or 0 for side in field.shape)
        return f"{size:,} bytes a record, {size * num_records:,} in all"
    unit, row_bytes = "frames" if field.kind == "video" else "bytes", 1
    if field.encoding == "ragged":
        row_bytes = item_bytes * math.prod(field.row_shape)
        unit = f"rows of {row_bytes:,} bytes" if row_bytes > 1 else unit
    known = (varies.get(f"record_{own}") for own in ("bytes", "frames", "rows"))
    lengths = next(filter(None, known), dict.fromkeys(("mean", "min", "max"), 0))
    mean = lengths["mean"]
    words = f"{mean:,.{int(mean < 100)}f} {unit} a record "
    words += f"({lengths['min']:,} to {lengths['max']:,}), "
    total = f"{mean * num_records * row_bytes:,.0f} in all"
    if varies["is_sample"]:
        total = f"about {total} (from a sample of {varies['num_looked_at']:,})"
    words += total
    if "height" in varies:
        (low, high), (narrow, wide) = varies["height"], varies["width"]
        if (low, narrow) == (high, wide):
            words += f", all {high} x {wide} pixels"
        else:
            words += f", {low} to {high} pixels high, {narrow} to {wide} wide"
    if varies.get("num_unreadable"):
        words += f", {varies['num_unreadable']} not readable"
    return words


def write_grid(path: str, grid: Path, count: int) -> bool:
    """Write a PNG of up to ``count`` evenly spread records; return False if no field can be drawn.

    Images are drawn, the middle frames of videos, and series of shape [T] or [C, T]. The fields of
    a record are side by side. DataError D106 for an image that cannot be read.
    """
    store = open_records(path)
    fields = store.manifest.fields
    images: list[str] = []
    series: list[str] = []
    for name, field in fields.items():
        *channels, length = field.shape or (0,)
        is_deep = field.dtype == "uint16" and len(channels) == 2 and channels[0] in (1, 3)
        is_picture = is_deep or field.channels is not None or field.kind == "video"
        if is_picture and 0 not in field.shape:
            images.append(name)
        is_number = field.encoding == "raw" and np.dtype(field.dtype).kind in "iuf"
        is_line = not channels or (len(channels) == 1 and (channels[0] or 0) <= len(CURVES))
        if is_number and is_line and (length or 0) >= MIN_SERIES:
            series.append(name)
    strips: list[np.ndarray] = []
    if images or series:
        num_records = store.manifest.num_records
        indices = spread(num_records, min(count, num_records))
        records = store.read(indices)
        for row, index in enumerate(indices.tolist()):
            try:
                tiles = [_image_tile(records[name][row], fields[name]) for name in images]
            except (BadImage, BadFrames) as error:
                what = f"is not a readable image ({error})"
                raise DataError(106, store.name(index), what, "repair or remove it") from error
            lines = [np.atleast_2d(records[name][row].numpy()) for name in series]
            numbers = np.concatenate([np.zeros(0), *(values.ravel() for values in lines)])
            numbers = numbers[np.isfinite(numbers)]
            # all series of a record have one scale
            low, high = float(min(numbers, default=0)), float(max(numbers, default=0))
            tiles += [_curve_tile(values.astype(np.float64), low, high) for values in lines]
            strips.append(np.hstack(tiles))
    store.close()
    if not strips:
        return False
    columns = math.ceil(math.sqrt(len(strips) / (strips[0].shape[1] // TILE)))
    strips += [np.full_like(strips[0], GRAY)] * (-len(strips) % columns)
    rows = [np.hstack(strips[start : start + columns]) for start in range(0, len(strips), columns)]
    with open_durable(grid) as file:
        file.write(cv2.imencode(".png", np.vstack(rows)[:, :, ::-1])[1].tobytes())
    return True


def _image_tile(value: Any, field: Field) -> np.ndarray:
    image: Any = value
    if field.kind == "video":
        frames = frames_of(value, field)
        image, field = frames[len(frames) // 2], field.frame
    if isinstance(image, torch.Tensor):
        image = image.numpy() if field.interleaved else image.permute(1, 2, 0).numpy()
    elif field.kind == "labels":
        image = decode_labels(image)
    elif not isinstance(image, np.ndarray):
        image = decode(image, field.shape[0] or 3, least=(TILE, TILE))
    if field.kind == "labels":
        image = label_colors()[image[:, :, 0]]
    elif image.dtype == np.uint16:
        image = (image // 257).astype(np.uint8)
    factor = INNER / max(image.shape[:2])
    height, width = (max(1, round(side * factor)) for side in image.shape[:2])
    method = cv2.INTER_AREA if factor < 1 else cv2.INTER_NEAREST
    scaled = cv2.resize(image, (width, height), interpolation=method).reshape(height, width, -1)
    tile = np.full((TILE, TILE, 3), GRAY, np.uint8)
    tile[EDGE : EDGE + height, EDGE : EDGE + width] = scaled
    return tile


def _curve_tile(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Draw a line per channel of [C, T], with ``high`` at the top and ``low`` at the bottom."""
    plot = np.full((INNER, INNER, 3), DARK, np.uint8)
    finite = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    heights = (high - finite) / ((high - low) or 1.0) * (INNER - 1)  # from the top
    for color, line in zip(CURVES, heights, strict=False):
        x, y = np.linspace(0, INNER - 1, len(line)), line
        if len(line) > 2 * INNER:  # the least and the greatest number of each column
            columns = np.array_split(line, INNER)
            x = np.repeat(np.arange(INNER), 2)
            y = np.array([end for part in columns for end in (part.min(), part.max())])
        points = np.stack([x, y], axis=1).round().astype(np.int32)[:, None]
        cv2.polylines(plot, [points], isClosed=False, color=color, lineType=cv2.LINE_AA)
    return np.pad(plot, ((EDGE, EDGE), (EDGE, EDGE), (0, 0)), constant_values=GRAY)
