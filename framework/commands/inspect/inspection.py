"""What a store holds, in words and as a picture."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch

from framework.contracts.records import Field, Manifest, RecordStore
from framework.errors import DataError
from framework.image.decode import BadImage, decode_shrunk
from framework.image.header import read_header
from framework.image.label_map import decode_labels, label_colors
from framework.order import spread
from framework.store.open_store import open_store
from framework.system.durable import open_durable

EXACT_BYTES, NUM_SAMPLES = (
    1 << 28,
    2048,
)  # what a store may have for all its images to be looked at, and how many are otherwise
BATCH = 256
BAR = 40  # characters of the largest class
MOST_BARS = 20  # classes; of more a summary is shown
MAX_FILES = 10  # of a directory, that are listed
TILE, EDGE = 96, 3  # pixels: small images grow to a tile less its edges, large ones shrink
GRAY, DARK = 96, 24
MIN_SERIES = 8  # numbers: fewer are no curve
CURVES = ((120, 200, 255), (255, 190, 90), (150, 230, 130), (240, 140, 200))  # RGB


def describe(path: str) -> Iterator[str]:
    """Lines about the store at ``path``: manifest, files, fields with their sizes, classes. DataError where it is none."""
    for line in _lines(path):
        yield "".join(
            letter if letter.isprintable() else repr(letter)[1:-1] for letter in line
        )  # names may be any bytes


def _lines(path: str) -> Iterator[str]:
    store = open_store(path)
    manifest = store.manifest
    size = _disk_bytes(path, manifest)
    yield f"{path}: {manifest.num_records:,} records, {size:,} bytes, schema {manifest.schema}"
    yield f"source: {manifest.source}"
    if manifest.options:
        yield f"options: {', '.join(f'{name}={value}' for name, value in manifest.options.items())}"
    if manifest.digest:
        yield f"digest: sha256 {manifest.digest}"
    yield from _file_lines(manifest)
    images = _look(store, size <= EXACT_BYTES)
    for name, field in manifest.fields.items():
        yield _field_line(name, field, manifest.num_records, images.get(name))
    yield from _class_lines(manifest)
    store.close()


def facts(path: str) -> dict[str, Any]:
    """Return all that ``describe`` tells, and every class, as values that JSON has.

    The manifest's own facts under its own names; besides ``path``, ``size_bytes``, ``class_summary``
    (see ``class_summary``), and for fields of image files what was seen of them under ``images``.
    """
    store = open_store(path)
    manifest = store.manifest
    size = _disk_bytes(path, manifest)
    images = _look(store, size <= EXACT_BYTES)
    store.close()
    return {
        "path": path,
        "size_bytes": size,
        **asdict(manifest),
        "images": {name: looked.facts(manifest.num_records) for name, looked in images.items()},
        "class_summary": class_summary(manifest)._asdict() if manifest.class_counts else None,
    }


class ClassSummary(NamedTuple):
    """Sizes of the classes, in records.

    Attributes:
        num_classes: with and without records.
        num_empty: classes without a record.
        smallest: name and size of the smallest class that has records.
        largest: name and size of the largest class.
        imbalance: the largest size divided by the smallest.

    """

    num_classes: int
    num_empty: int
    smallest: tuple[str, int] | None
    largest: tuple[str, int] | None
    imbalance: float | None


def class_summary(manifest: Manifest) -> ClassSummary:
    """Summarize the class counts of a manifest that has them."""
    sizes = [
        (name, count)
        for name, count in zip(manifest.classes, manifest.class_counts, strict=True)
        if count
    ]
    num_classes = len(manifest.classes)
    if not sizes:
        return ClassSummary(num_classes, num_classes, None, None, None)
    smallest, largest = (choose(sizes, key=lambda size: size[1]) for choose in (min, max))
    return ClassSummary(
        num_classes, num_classes - len(sizes), smallest, largest, largest[1] / smallest[1]
    )


def _disk_bytes(path: str, manifest: Manifest) -> int:
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())


def _file_lines(manifest: Manifest) -> Iterator[str]:
    for shard in manifest.shards[:MAX_FILES]:
        yield f"file {shard.name}: {shard.num_records:,} records, {shard.size_bytes:,} bytes, sha256 {shard.sha256}"
    if len(manifest.shards) > MAX_FILES:
        yield f"and {len(manifest.shards) - MAX_FILES} more files, {len(manifest.shards)} in all"


class _Looked(NamedTuple):
    """Of an image field: bytes of each file looked at, and (height, width) of each that is an image."""

    lengths: list[int]
    sizes: list[tuple[int, int]]

    def add(self, data: Any) -> None:
        self.lengths.append(len(data))
        with suppress(BadImage):
            self.sizes.append(read_header(data).size)

    def facts(self, num_records: int) -> dict[str, Any]:
        """Bytes and pixels of the files that were looked at; ``height`` and ``width`` are [least, most]."""
        found: dict[str, Any] = {
            "num_looked_at": len(self.lengths),
            "is_sample": len(self.lengths) < num_records,
            "num_unreadable": len(self.lengths) - len(self.sizes),
        }
        if self.lengths:
            found["record_bytes"] = {
                "mean": sum(self.lengths) / len(self.lengths),
                "min": min(self.lengths),
                "max": max(self.lengths),
            }
        if self.sizes:
            heights, widths = zip(*self.sizes, strict=True)
            found |= {"height": [min(heights), max(heights)], "width": [min(widths), max(widths)]}
        return found


def _look(store: RecordStore, everything: bool) -> dict[str, _Looked]:
    """At the image fields of all records, or of a sample, evenly spread."""
    manifest = store.manifest
    looked = {
        name: _Looked([], []) for name, field in manifest.fields.items() if field.encoding != "raw"
    }
    indices = spread(
        manifest.num_records,
        manifest.num_records if everything else min(NUM_SAMPLES, manifest.num_records),
    )
    for part in indices.split(BATCH) if looked else ():
        records = store.read(part)
        for name, found in looked.items():
            for data in records[name]:
                found.add(data)
    return looked


def _field_line(name: str, field: Field, num_records: int, looked: _Looked | None) -> str:
    shape = "x".join("?" if size is None else str(size) for size in field.shape) or "scalar"
    kind = "label map, " if field.kind == "labels" else ""
    line = f"field {name}: {kind}{field.encoding} {field.dtype} {shape}, "
    if looked is None:
        size = np.dtype(field.dtype).itemsize * math.prod(side or 0 for side in field.shape)
        return line + f"{size:,} bytes a record, {size * num_records:,} in all"
    total, mean = sum(looked.lengths), sum(looked.lengths) / max(1, len(looked.lengths))
    exact, bad = len(looked.lengths) == num_records, len(looked.lengths) - len(looked.sizes)
    line += f"{mean:,.0f} bytes a record ({min(looked.lengths):,} to {max(looked.lengths):,}), "
    line += (
        f"{total:,} in all"
        if exact
        else f"about {mean * num_records:,.0f} in all (from a sample of {len(looked.lengths):,})"
    )
    return line + _sizes_words(looked.sizes) + (f", {bad} not readable" if bad else "")


def _sizes_words(sizes: list[tuple[int, int]]) -> str:
    if not sizes:
        return ""
    (height, width), (high, wide) = np.min(sizes, axis=0).tolist(), np.max(sizes, axis=0).tolist()
    if (height, width) == (high, wide):
        return f", all {height} x {width} pixels"
    return f", {height} to {high} pixels high, {width} to {wide} wide"


def _class_lines(manifest: Manifest) -> Iterator[str]:
    """A histogram: a bar for each class, as long as the class is large; for many classes a summary."""
    if len(manifest.classes) > MOST_BARS:
        yield _summary_line(manifest)
        return
    if not manifest.class_counts:
        yield from (f"class {number}: {name}" for number, name in enumerate(manifest.classes))
        return
    most, width = max(manifest.class_counts), max(map(len, manifest.classes), default=0)
    digits = len(f"{most:,}")
    for number, (name, count) in enumerate(
        zip(manifest.classes, manifest.class_counts, strict=True)
    ):
        bar = "#" * math.ceil(BAR * count / max(1, most))
        yield f"class {number}: {name:{width}}  {count:>{digits},} records  {bar}".rstrip()


def _summary_line(manifest: Manifest) -> str:
    line = f"classes: {len(manifest.classes):,}"
    if manifest.class_counts:
        summary = class_summary(manifest)
        if summary.num_empty:
            line += f", {summary.num_empty:,} of them without a record"
        if summary.smallest and summary.largest:
            (small, least), (large, most) = summary.smallest, summary.largest
            line += f"; smallest {small} ({least:,} records), largest {large} ({most:,}), imbalance {summary.imbalance:.3g}"
    return f"{line}; --json lists them"


# ---------------------------------------------------------------------------------------------------------------- picture


def write_grid(path: str, grid: Path, count: int) -> bool:
    """A PNG of up to ``count`` records, evenly spread over the store: their images, and curves for series of numbers ([T] or [C, T]),
    a record's fields side by side. False where no field can be shown.
    """
    store = open_store(path)
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
    """For each record the tiles of its fields in a row, RGB."""
    fields, num_records = store.manifest.fields, store.manifest.num_records
    images = [name for name, field in fields.items() if _is_image(field)]
    series = [name for name, field in fields.items() if _is_series(field)]
    if not images and not series:
        return []
    indices = spread(num_records, min(count, num_records))
    records = store.read(indices)
    strips: list[np.ndarray] = []
    for row, index in enumerate(indices.tolist()):
        tiles = [_tile(_pixels(store, index, records[name][row], fields[name])) for name in images]
        tiles += _curves(
            [np.atleast_2d(records[name][row].numpy()).astype(np.float64) for name in series]
        )
        strips.append(np.hstack(tiles))
    return strips


def _is_image(field: Field) -> bool:
    deep = field.dtype == "uint16" and len(field.shape) == 3 and field.shape[0] in (1, 3)
    return field.channels is not None or deep


def _is_series(field: Field) -> bool:
    is_line = len(field.shape) == 1 or (
        len(field.shape) == 2 and (field.shape[0] or 0) <= len(CURVES)
    )
    return (
        field.encoding == "raw"
        and is_line
        and (field.shape[-1] or 0) >= MIN_SERIES
        and np.dtype(field.dtype).kind in "iuf"
    )


def _pixels(
    store: RecordStore, index: int, value: torch.Tensor | memoryview, field: Field
) -> np.ndarray:
    """uint8 [H, W, C]; a label map has a color for each class."""
    if field.kind == "labels":
        return label_colors()[_labels(store, index, value, field)]
    if isinstance(value, torch.Tensor):
        pixels = (value if field.interleaved else value.permute(1, 2, 0)).numpy()
        return (pixels // 257).astype(np.uint8) if pixels.dtype == np.uint16 else pixels
    try:
        return decode_shrunk(value, field.shape[0] or 3, (TILE, TILE))
    except BadImage as error:
        raise DataError(
            106, store.name(index), f"not a readable image ({error})", "mend or remove it"
        ) from error


def _labels(
    store: RecordStore, index: int, value: torch.Tensor | memoryview, field: Field
) -> np.ndarray:
    """uint8 [H, W]."""
    if isinstance(value, torch.Tensor):
        return value.numpy().squeeze(2 if field.interleaved else 0)
    try:
        return decode_labels(value)[:, :, 0]
    except BadImage as error:
        raise DataError(
            106, store.name(index), f"not a readable image ({error})", "mend or remove it"
        ) from error


def _tile(image: np.ndarray) -> np.ndarray:
    """RGB, TILE x TILE, not distorted, on gray, with an edge that keeps neighbors apart."""
    height, width = image.shape[:2]
    factor = (TILE - 2 * EDGE) / max(height, width)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    scaled = cv2.resize(
        image, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_NEAREST
    )
    tile = np.full((TILE, TILE, 3), GRAY, np.uint8)
    tile[EDGE : EDGE + size[1], EDGE : EDGE + size[0]] = scaled.reshape(size[1], size[0], -1)
    return tile


def _curves(series: list[np.ndarray]) -> list[np.ndarray]:
    """A tile for each [C, T], a curve for each channel; all of a record to one scale, so that they can be compared."""
    numbers = np.concatenate([values.ravel() for values in series]) if series else np.zeros(1)
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)
    return [
        _curve_tile(np.nan_to_num(values, nan=low, posinf=high, neginf=low), low, high)
        for values in series
    ]


def _curve_tile(values: np.ndarray, low: float, high: float) -> np.ndarray:
    inner = TILE - 2 * EDGE
    plot = np.full((inner, inner, 3), DARK, np.uint8)
    heights = (high - values) / ((high - low) or 1.0) * (inner - 1)  # from the top
    for color, line in zip(CURVES, heights, strict=False):
        cv2.polylines(
            plot, [_points(line, inner)], isClosed=False, color=color, lineType=cv2.LINE_AA
        )
    tile = np.full((TILE, TILE, 3), GRAY, np.uint8)
    tile[EDGE:-EDGE, EDGE:-EDGE] = plot
    return tile


def _points(line: np.ndarray, width: int) -> np.ndarray:
    """int32 [N, 1, 2] (x, y): each number, or, where there are many more than pixels, each column's lowest and highest."""
    x = np.linspace(0, width - 1, len(line))
    if len(line) > 2 * width:
        columns = np.array_split(line, width)
        line = np.array([end for part in columns for end in (part.min(), part.max())])
        x = np.repeat(np.arange(width), 2)
    return np.stack([x, line], axis=1).round().astype(np.int32)[:, None]
