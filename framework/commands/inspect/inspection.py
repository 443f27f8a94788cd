"""Describe what a store holds, as lines of text and as JSON."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from framework.contracts.records import Field, Manifest
from framework.errors import printable
from framework.image.decode import BadImage
from framework.image.header import read_header
from framework.order.batches import spread
from framework.store.open_store import open_store

EXACT_BYTES = 1 << 28  # of a larger store only a sample of the images is read
NUM_SAMPLES = 2048
BATCH = 256
BAR = 40  # characters of the largest class
MOST_BARS = 20  # a store with more classes has a summary instead
MAX_FILES = 10  # of a directory, that are listed


def describe(path: str) -> Iterator[str]:
    """Yield lines about manifest, files, fields and classes. DataError if there is no store."""
    manifest, size_bytes, images = _read(path)
    lines = [
        f"{path}: {manifest.num_records:,} records, {size_bytes:,} bytes, schema {manifest.schema}",
        f"source: {manifest.source}",
    ]
    if manifest.options:
        options = (f"{name}={value}" for name, value in manifest.options.items())
        lines.append(f"options: {', '.join(options)}")
    if manifest.digest:
        lines.append(f"digest: sha256 {manifest.digest}")
    for shard in manifest.shards[:MAX_FILES]:
        held = f"{shard.num_records:,} records, {shard.size_bytes:,} bytes"
        lines.append(f"file {shard.name}: {held}, sha256 {shard.sha256}")
    num_files = len(manifest.shards)
    if num_files > MAX_FILES:
        lines.append(f"and {num_files - MAX_FILES} more files, {num_files} in all")
    for name, field in manifest.fields.items():
        lines.append(_field_line(name, field, manifest.num_records, images.get(name)))
    yield from map(printable, [*lines, *_class_lines(manifest)])


def facts(path: str) -> dict[str, Any]:
    """Return all that ``describe`` tells, and every class, as values for JSON."""
    manifest, size_bytes, images = _read(path)
    summary = None
    if manifest.class_counts:
        summary = class_summary(manifest)._asdict()
    return {
        "path": path,
        "size_bytes": size_bytes,
        **asdict(manifest),
        "images": {name: files.facts(manifest.num_records) for name, files in images.items()},
        "class_summary": summary,
    }


class ClassSummary(NamedTuple):
    """Sizes of the classes, in records."""

    num_classes: int
    num_empty: int  # classes without a record
    smallest: tuple[str, int] | None  # name and size, of the classes with records
    largest: tuple[str, int] | None
    imbalance: float | None  # the largest size divided by the smallest


def class_summary(manifest: Manifest) -> ClassSummary:
    pairs = zip(manifest.classes, manifest.class_counts, strict=True)
    sizes = [(name, count) for name, count in pairs if count]
    counts = (len(manifest.classes), len(manifest.classes) - len(sizes))
    if not sizes:
        return ClassSummary(*counts, None, None, None)
    smallest = min(sizes, key=lambda size: size[1])
    largest = max(sizes, key=lambda size: size[1])
    return ClassSummary(*counts, smallest, largest, largest[1] / smallest[1])


class _ImageFiles(NamedTuple):
    """The image files of one field that were read."""

    lengths: list[int]  # bytes of each file
    sizes: list[tuple[int, int]]  # (height, width) of each file that is an image

    def add(self, data: Any) -> None:
        self.lengths.append(len(data))
        with suppress(BadImage):
            self.sizes.append(read_header(data).size)

    @property
    def num_unreadable(self) -> int:
        return len(self.lengths) - len(self.sizes)

    @property
    def mean_bytes(self) -> float:
        return sum(self.lengths) / max(1, len(self.lengths))

    def facts(self, num_records: int) -> dict[str, Any]:
        """Return values for JSON; ``height`` and ``width`` are [least, most]."""
        result: dict[str, Any] = {
            "num_looked_at": len(self.lengths),
            "is_sample": len(self.lengths) < num_records,
            "num_unreadable": self.num_unreadable,
        }
        if self.lengths:
            ends = {"min": min(self.lengths), "max": max(self.lengths)}
            result["record_bytes"] = {"mean": self.mean_bytes, **ends}
        if self.sizes:
            heights, widths = zip(*self.sizes, strict=True)
            result["height"] = [min(heights), max(heights)]
            result["width"] = [min(widths), max(widths)]
        return result


def _read(path: str) -> tuple[Manifest, int, dict[str, _ImageFiles]]:
    """Return a store's manifest, its size in bytes, and its image files or a sample of them."""
    store = open_store(path)
    manifest = store.manifest
    size_bytes = os.path.getsize(path)
    if os.path.isdir(path):
        size_bytes = sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
    encoded = [name for name, field in manifest.fields.items() if field.encoding == "image"]
    images = {name: _ImageFiles([], []) for name in encoded}
    count = manifest.num_records
    if size_bytes > EXACT_BYTES:
        count = min(NUM_SAMPLES, count)
    if images:
        for part in spread(manifest.num_records, count).split(BATCH):
            records = store.read(part)
            for name, files in images.items():
                for data in records[name]:
                    files.add(data)
    store.close()
    return manifest, size_bytes, images


def _field_line(name: str, field: Field, num_records: int, files: _ImageFiles | None) -> str:
    shape = "x".join("?" if size is None else str(size) for size in field.shape) or "scalar"
    line = f"field {name}: "
    if field.kind == "labels":
        line += "label map, "
    elif field.kind in ("text", "bytes", "boxes", "points"):
        line += f"{field.kind}, "
    line += f"{field.encoding} {field.dtype} {shape}, "
    if field.encoding == "ragged":
        row_bytes = np.dtype(field.dtype).itemsize * math.prod(field.row_shape)
        return line + f"{row_bytes:,} bytes a row"
    if files is None:
        size = np.dtype(field.dtype).itemsize * math.prod(side or 0 for side in field.shape)
        return line + f"{size:,} bytes a record, {size * num_records:,} in all"
    mean = files.mean_bytes
    num_files = len(files.lengths)
    line += f"{mean:,.0f} bytes a record ({min(files.lengths):,} to {max(files.lengths):,}), "
    if num_files == num_records:
        line += f"{sum(files.lengths):,} in all"
    else:
        line += f"about {mean * num_records:,.0f} in all (from a sample of {num_files:,})"
    if files.sizes:
        low, narrow = np.min(files.sizes, axis=0).tolist()
        high, wide = np.max(files.sizes, axis=0).tolist()
        if (low, narrow) == (high, wide):
            line += f", all {high} x {wide} pixels"
        else:
            line += f", {low} to {high} pixels high, {narrow} to {wide} wide"
    if files.num_unreadable:
        line += f", {files.num_unreadable} not readable"
    return line


def _class_lines(manifest: Manifest) -> Iterator[str]:
    """Yield a histogram with a bar for each class, or a summary if there are many classes."""
    counts = manifest.class_counts
    if len(manifest.classes) > MOST_BARS:
        yield _summary_line(manifest)
    elif not counts:
        yield from (f"class {number}: {name}" for number, name in enumerate(manifest.classes))
    else:
        most = max(counts)
        width = max(map(len, manifest.classes))
        digits = len(f"{most:,}")
        pairs = zip(manifest.classes, counts, strict=True)
        for number, (name, count) in enumerate(pairs):
            bar = "#" * math.ceil(BAR * count / max(1, most))
            yield f"class {number}: {name:{width}}  {count:>{digits},} records  {bar}".rstrip()


def _summary_line(manifest: Manifest) -> str:
    line = f"classes: {len(manifest.classes):,}"
    if manifest.class_counts:
        summary = class_summary(manifest)
        if summary.num_empty:
            line += f", {summary.num_empty:,} of them without a record"
        if summary.smallest and summary.largest:
            small, least = summary.smallest
            large, most = summary.largest
            line += f"; smallest {small} ({least:,} records), largest {large} ({most:,})"
            line += f", imbalance {summary.imbalance:.3g}"
    return f"{line}; --json lists them"
