"""Describe what a store holds, as lines of text and as JSON."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from framework.contracts.records import Field, Manifest, Ragged, RecordStore
from framework.errors import printable
from framework.media.decode import BadImage
from framework.media.frame_files import BadFrames, frames_of
from framework.media.header import read_header
from framework.order.batches import spread
from framework.store.open_store import files_of, open_records

EXACT_BYTES = 1 << 28  # of a larger store only a sample of the fields of any length is read
NUM_SAMPLES = 2048
BATCH = 256
BAR = 40  # characters of the largest class
MOST_BARS = 20  # a store with more classes has a summary instead
PLAIN = ("raw", "image")  # kinds of fields that their encoding says already
MAX_FILES = 10  # of a directory, that are listed


def facts(path: str) -> dict[str, Any]:
    """Return what a store holds, as values for JSON: its manifest, files, fields and classes.

    ``images``, ``videos`` and ``ragged`` tell what varies from record to record, by field: bytes of
    an image file, frames of a video, rows of an array; ``height`` and ``width`` are [least, most].

    Raises:
        DataError: There is no store.
    """
    store = open_records(path)
    manifest = store.manifest
    size_bytes = sum(os.path.getsize(file) for file in files_of(path) if os.path.isfile(file))
    num_records = count = manifest.num_records
    if size_bytes > EXACT_BYTES:
        count = min(NUM_SAMPLES, num_records)
    varying: dict[str, dict[str, Any]] = {"images": {}, "videos": {}, "ragged": {}}
    for name, values in _varying(store, count).items():
        field = manifest.fields[name]
        if field.encoding == "image":
            varying["images"][name] = values.facts("record_bytes", num_records)
        elif field.kind == "video":
            varying["videos"][name] = values.facts("record_frames", num_records)
        else:
            varying["ragged"][name] = values.facts("record_rows", num_records)
    store.close()
    summary = _class_summary(manifest) if manifest.class_counts else None
    known = {"path": path, "size_bytes": size_bytes, **asdict(manifest), **varying}
    return {**known, "class_summary": summary}


class _Varying:
    """What varies in a field: the length of each record, and (height, width) of each image."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.lengths: list[int] = []
        self.sizes: list[tuple[int, int]] = []

    def add(self, values: Any) -> None:
        if isinstance(values, Ragged):
            self.lengths.extend(values.lengths.tolist())
            return
        for data in values:
            with suppress(BadFrames, BadImage):
                first: Any = data
                if self.field.kind == "video":
                    frames = frames_of(data, self.field)
                    first = frames[0]
                    self.lengths.append(len(frames))
                else:
                    self.lengths.append(len(data))
                is_array = isinstance(first, np.ndarray)
                size = first.shape[:2] if is_array else read_header(first).size
                self.sizes.append((size[0], size[1]))

    def facts(self, unit: str, num_records: int) -> dict[str, Any]:
        lengths = self.lengths
        result: dict[str, Any] = {
            "num_looked_at": len(lengths),
            "is_sample": len(lengths) < num_records,
        }
        if lengths:
            mean = sum(lengths) / len(lengths)
            result[unit] = {"mean": mean, "min": min(lengths), "max": max(lengths)}
        if unit != "record_rows":
            result["num_unreadable"] = len(lengths) - len(self.sizes)
        if self.sizes:
            for side, values in zip(
                ("height", "width"), zip(*self.sizes, strict=True), strict=True
            ):
                result[side] = [min(values), max(values)]
        return result


def _varying(store: RecordStore, count: int) -> dict[str, _Varying]:
    """Read what varies in the fields that are not raw, of so many evenly spread records."""
    fields = store.manifest.fields
    varying = {name: _Varying(own) for name, own in fields.items() if own.encoding != "raw"}
    if varying:
        for part in spread(store.manifest.num_records, count).split(BATCH):
            records = store.read(part)
            for name, values in varying.items():
                values.add(records[name])
    return varying


def _class_summary(manifest: Manifest) -> dict[str, Any]:
    """Return sizes of the classes, in records; ``smallest`` and ``largest`` are name and size."""
    pairs = zip(manifest.classes, manifest.class_counts, strict=True)
    sizes = [(name, count) for name, count in pairs if count]
    smallest = min(sizes, key=lambda size: size[1], default=None)
    largest = max(sizes, key=lambda size: size[1], default=None)
    return {
        "num_classes": len(manifest.classes),
        "num_empty": len(manifest.classes) - len(sizes),
        "smallest": smallest,
        "largest": largest,
        "imbalance": largest[1] / smallest[1] if smallest and largest else None,
    }


def describe(known: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about manifest, files, fields and classes, from what ``facts`` returns."""
    yield from map(printable, _lines(known))


def _lines(known: Mapping[str, Any]) -> Iterator[str]:
    num_records, size_bytes = known["num_records"], known["size_bytes"]
    size = f"{num_records:,} records, {size_bytes:,} bytes, schema {known['schema']}"
    yield f"{known['path']}: {size}"
    yield f"source: {known['source']}"
    if options := known["options"]:
        yield f"options: {', '.join(f'{name}={value}' for name, value in options.items())}"
    if known["digest"]:
        yield f"digest: sha256 {known['digest']}"
    shards = known["shards"]
    for shard in shards[:MAX_FILES]:
        held = f"{shard['num_records']:,} records, {shard['size_bytes']:,} bytes"
        yield f"file {shard['name']}: {held}, sha256 {shard['sha256']}"
    if len(shards) > MAX_FILES:
        yield f"and {len(shards) - MAX_FILES} more files, {len(shards)} in all"
    varying = {**known["images"], **known["videos"], **known["ragged"]}
    for name, given in known["fields"].items():
        field = Field(**given)
        shape = "x".join("?" if side is None else str(side) for side in field.shape) or "scalar"
        kind = "label map, " if field.kind == "labels" else f"{field.kind}, "
        if field.kind in PLAIN:
            kind = ""
        words = _lengths(field, varying.get(name), num_records)
        yield f"field {name}: {kind}{field.encoding} {field.dtype} {shape}, {words}"
    yield from _class_lines(known)


def _lengths(field: Field, varies: Mapping[str, Any] | None, num_records: int) -> str:
    """Return the words on the bytes or rows of a field, and on the pixels of its images."""
    item_bytes = np.dtype(field.dtype).itemsize
    if varies is None:
        size = item_bytes * math.prod(side or 0 for side in field.shape)
        return f"{size:,} bytes a record, {size * num_records:,} in all"
    unit, row_bytes = "frames" if field.kind == "video" else "bytes", 1
    if field.encoding == "ragged":
        row_bytes = item_bytes * math.prod(field.row_shape)
        unit = f"rows of {row_bytes:,} bytes" if row_bytes > 1 else unit
    units = ("record_bytes", "record_frames", "record_rows")
    lengths = next(
        (varies[own] for own in units if own in varies), dict.fromkeys(("mean", "min", "max"), 0)
    )
    mean = lengths["mean"]
    digits = int(mean < 100)
    words = f"{mean:,.{digits}f} {unit} a record ({lengths['min']:,} to {lengths['max']:,}), "
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


def _class_lines(known: Mapping[str, Any]) -> Iterator[str]:
    """Yield a histogram with a bar for each class, or a summary if there are many classes."""
    classes, counts, summary = known["classes"], known["class_counts"], known["class_summary"]
    if len(classes) > MOST_BARS:
        line = f"classes: {len(classes):,}"
        if summary and summary["num_empty"]:
            line += f", {summary['num_empty']:,} of them without a record"
        if summary and summary["smallest"]:
            (small, least), (large, most) = summary["smallest"], summary["largest"]
            line += f"; smallest {small} ({least:,} records), largest {large} ({most:,})"
            line += f", imbalance {summary['imbalance']:.3g}"
        yield f"{line}; --json lists them"
    elif not counts:
        yield from (f"class {number}: {name}" for number, name in enumerate(classes))
    else:
        width, digits = max(map(len, classes)), len(f"{max(counts):,}")
        for number, (name, count) in enumerate(zip(classes, counts, strict=True)):
            bar = "#" * math.ceil(BAR * count / max(1, *counts))
            yield f"class {number}: {name:{width}}  {count:>{digits},} records  {bar}".rstrip()
