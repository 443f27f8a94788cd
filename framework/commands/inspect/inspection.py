"""Describe what a store holds, as lines of text and as JSON."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

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


def describe(path: str) -> Iterator[str]:
    """Yield lines about manifest, files, fields and classes. DataError if there is no store."""
    manifest, size_bytes, varying = _read(path)
    lines = [
        f"{path}: {manifest.num_records:,} records, {size_bytes:,} bytes, schema {manifest.schema}",
        f"source: {manifest.source}",
    ]
    if manifest.options:
        options = (f"{name}={value}" for name, value in manifest.options.items())
        lines.append(f"options: {', '.join(options)}")
    if manifest.digest:
        lines.append(f"digest: sha256 {manifest.digest}")
    lines += _file_lines(manifest)
    for name, field in manifest.fields.items():
        lines.append(_field_line(name, field, manifest.num_records, varying.get(name)))
    yield from map(printable, [*lines, *_class_lines(manifest)])


def facts(path: str) -> dict[str, Any]:
    """Return all that ``describe`` tells, and every class, as values for JSON."""
    manifest, size_bytes, varying = _read(path)
    summary = None
    if manifest.class_counts:
        summary = class_summary(manifest)._asdict()
    return {
        "path": path,
        "size_bytes": size_bytes,
        **asdict(manifest),
        **_varying_facts(manifest, varying),
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


class _Varying(NamedTuple):
    """What varies from record to record in a field of image files, videos or ragged arrays.

    Attributes:
        lengths: bytes of each image file, frames of each video, or rows of each array, of those
            that were read.
        sizes: (height, width) of each file that is an image, and of each video's first frame.
    """

    lengths: list[int]
    sizes: list[tuple[int, int]]

    def add(self, values: Any) -> None:
        if isinstance(values, Ragged):
            self.lengths.extend(values.lengths.tolist())
            return
        for data in values:
            self.lengths.append(len(data))
            with suppress(BadImage):
                self.sizes.append(read_header(data).size)

    def add_videos(self, values: Any, field: Field) -> None:
        for data in values:
            with suppress(BadFrames, BadImage):
                frames = frames_of(data, field)
                self.lengths.append(len(frames))
                first = frames[0]
                if isinstance(first, np.ndarray):
                    self.sizes.append((first.shape[0], first.shape[1]))
                else:
                    self.sizes.append(read_header(first).size)

    @property
    def num_unreadable(self) -> int:
        return len(self.lengths) - len(self.sizes)

    @property
    def mean(self) -> float:
        return sum(self.lengths) / max(1, len(self.lengths))

    def facts(self, num_records: int, unit: str) -> dict[str, Any]:
        """Return values for JSON."""
        num_read = len(self.lengths)
        result: dict[str, Any] = {"num_looked_at": num_read, "is_sample": num_read < num_records}
        if self.lengths:
            ends = {"min": min(self.lengths), "max": max(self.lengths)}
            result[unit] = {"mean": self.mean, **ends}
        return result

    def image_facts(self, num_records: int, unit: str) -> dict[str, Any]:
        """Return values for JSON; ``height`` and ``width`` are [least, most]."""
        result = self.facts(num_records, unit)
        result["num_unreadable"] = self.num_unreadable
        if self.sizes:
            heights, widths = zip(*self.sizes, strict=True)
            result["height"] = [min(heights), max(heights)]
            result["width"] = [min(widths), max(widths)]
        return result

    def text(self, num_records: int, unit: str, row_bytes: int = 1) -> str:
        """Return the words on the lengths: of a record, and of all records."""
        if row_bytes > 1:
            unit = f"rows of {row_bytes:,} bytes"
        digits = int(self.mean < 100)
        lengths = self.lengths or [0]
        line = f"{self.mean:,.{digits}f} {unit} a record ({min(lengths):,} to {max(lengths):,}), "
        num_read = len(self.lengths)
        if num_read == num_records:
            return line + f"{sum(lengths) * row_bytes:,} in all"
        total = self.mean * num_records * row_bytes
        return line + f"about {total:,.0f} in all (from a sample of {num_read:,})"


def _varying_facts(manifest: Manifest, varying: dict[str, _Varying]) -> dict[str, Any]:
    """Return the facts on image files, videos and ragged fields, by the names of the fields."""
    facts: dict[str, Any] = {"images": {}, "videos": {}, "ragged": {}}
    for name, values in varying.items():
        if manifest.fields[name].encoding == "image":
            facts["images"][name] = values.image_facts(manifest.num_records, "record_bytes")
        elif manifest.fields[name].kind == "video":
            facts["videos"][name] = values.image_facts(manifest.num_records, "record_frames")
        else:
            facts["ragged"][name] = values.facts(manifest.num_records, "record_rows")
    return facts


def _read(path: str) -> tuple[Manifest, int, dict[str, _Varying]]:
    """Return a store's manifest, its size in bytes, and what varies."""
    store = open_records(path)
    manifest = store.manifest
    size_bytes = sum(os.path.getsize(file) for file in files_of(path) if os.path.isfile(file))
    varying = _read_varying(store, is_large=size_bytes > EXACT_BYTES)
    store.close()
    return manifest, size_bytes, varying


def _read_varying(store: RecordStore, is_large: bool) -> dict[str, _Varying]:
    """Read what varies in the fields that are not raw: of all records, or of a sample."""
    fields = store.manifest.fields
    varying = {name: _Varying([], []) for name in fields if fields[name].encoding != "raw"}
    num_records = store.manifest.num_records
    count = num_records
    if is_large:
        count = min(NUM_SAMPLES, num_records)
    if varying:
        for part in spread(num_records, count).split(BATCH):
            records = store.read(part)
            for name, values in varying.items():
                if fields[name].kind == "video":
                    values.add_videos(records[name], fields[name])
                else:
                    values.add(records[name])
    return varying


def _file_lines(manifest: Manifest) -> list[str]:
    lines: list[str] = []
    for shard in manifest.shards[:MAX_FILES]:
        held = f"{shard.num_records:,} records, {shard.size_bytes:,} bytes"
        lines.append(f"file {shard.name}: {held}, sha256 {shard.sha256}")
    num_files = len(manifest.shards)
    if num_files > MAX_FILES:
        lines.append(f"and {num_files - MAX_FILES} more files, {num_files} in all")
    return lines


def _field_line(name: str, field: Field, num_records: int, varying: _Varying | None) -> str:
    shape = "x".join("?" if size is None else str(size) for size in field.shape) or "scalar"
    line = f"field {name}: "
    if field.kind == "labels":
        line += "label map, "
    elif field.kind not in PLAIN:
        line += f"{field.kind}, "
    line += f"{field.encoding} {field.dtype} {shape}, "
    if varying is None:
        size = np.dtype(field.dtype).itemsize * math.prod(side or 0 for side in field.shape)
        return line + f"{size:,} bytes a record, {size * num_records:,} in all"
    if field.encoding == "ragged":
        row_bytes = np.dtype(field.dtype).itemsize * math.prod(field.row_shape)
        return line + varying.text(num_records, "bytes", row_bytes)
    unit = "bytes"
    if field.kind == "video":
        unit = "frames"
    return line + varying.text(num_records, unit) + _image_words(varying)


def _image_words(files: _Varying) -> str:
    """Return the words on the images' sizes."""
    line = ""
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
