"""Which fields of a record a transform changes, and how boxes and points follow their image."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.contracts.data import (
    CutsSounds,
    Scales,
    SourceContext,
    TakesArrays,
    Transform,
    cuts_videos,
)
from framework.contracts.records import Field, Manifest, Ragged
from framework.data.collate import WAYS, length_name
from framework.errors import ConfigError
from framework.media.boxes import moved_boxes, moved_points

PICTURES = ("image", "labels")  # kinds of fields that boxes and points follow


def is_cut(field: Field, transform: Transform) -> bool:
    """Return whether a field needs more than gathering.

    Image files and interleaved pixels always do. Pixels in planes do if the transform changes any.
    """
    if field.encoding == "image" or field.interleaved:
        return True
    resizes = transform.size is not None or transform.num_draws > 0
    return field.channels is not None and (resizes or transform.function is not None)


def cut_fields(manifest: Manifest, transform: Transform) -> dict[str, Field]:
    """Return the fields that need more than gathering: images, or the arrays of a function."""
    fields = manifest.fields.items()
    cut = {name: field for name, field in fields if is_cut(field, transform)}
    function = transform.function
    if not cut and isinstance(function, TakesArrays) and function.takes_arrays:
        return {name: field for name, field in fields if field.encoding == "raw" and field.shape}
    return cut


def followers(manifest: Manifest) -> dict[str, Field]:
    """Return the boxes and points of a store that has images."""
    fields = manifest.fields.items()
    if not any(field.kind in PICTURES for _, field in fields):
        return {}
    return {name: field for name, field in fields if field.kind in ("boxes", "points")}


def moved(field: Field, values: Any, windows: Tensor, size: tuple[int, int] | None) -> Any:
    """Return boxes or points, ragged or not, after the change of their images."""
    rows, counts = values, torch.ones(len(windows), dtype=torch.int64)
    if isinstance(values, Ragged):
        rows, counts = values
    width = field.shape[-1] or 0
    flat = rows.reshape(-1, width)
    per_row = flat.shape[0] // max(1, len(rows))  # points of a row
    windows = windows.repeat_interleave(counts * per_row, dim=0)
    move = moved_boxes if field.kind == "boxes" else moved_points
    moved = move(flat, windows, size).view(rows.shape)
    return values._replace(values=moved) if isinstance(values, Ragged) else moved


def check_fields(manifest: Manifest, context: SourceContext) -> None:
    """Check that the fields can be put into a batch. ConfigError C199."""
    if context.collate not in WAYS:
        what = f"must be {', '.join(WAYS[:-1])} or {WAYS[-1]}"
        raise ConfigError(199, f"collate = {context.collate}", what, "choose one of them")
    if isinstance(context.transform, Scales):
        what = "leaves images of several sizes"
        fix = "make it a part of transform=compose, with a crop behind it"
        raise ConfigError(199, "transform", what, fix)
    _check_lengths(manifest, context.collate)
    _check_videos(manifest, context.transform)
    _check_transform(manifest, context.transform)
    moving = ", ".join(followers(manifest))
    if moving and context.transform.function is not None:
        what = f"a function cannot move {moving}"
        fix = "choose a transform without a function, or pack without these fields"
        raise ConfigError(199, "transform", what, fix)


def _check_lengths(manifest: Manifest, collate: str) -> None:
    """Check that the lengths of padded fields replace no other field. ConfigError C199."""
    for name, field in manifest.fields.items():
        added = length_name(name, field, collate)
        if added in manifest.fields:
            what = f"the lengths of {name} would replace the field {added}"
            fix = "rename the field, or set collate=list"
            raise ConfigError(199, "collate = pad", what, fix)


def _check_videos(manifest: Manifest, transform: Transform) -> None:
    """Check that videos can be cut. ConfigError C262."""
    names = [name for name, field in manifest.fields.items() if field.kind == "video"]
    if names and transform.function is not None:
        what = f"a function changes images, and cannot change {', '.join(names)}"
        raise ConfigError(262, "transform", what, "choose a transform without a function")
    if names and not cuts_videos(transform):
        what = f"does not say which frames of {', '.join(names)} to take"
        fix = "choose transform=video_window, or make it a part of transform=compose"
        raise ConfigError(262, "transform", what, fix)


def _check_transform(manifest: Manifest, transform: Transform) -> None:
    """Check that a transform has something to change. ConfigError C199."""
    fields = manifest.fields.items()
    kinds = {field.kind for _, field in fields}
    resizes = transform.size is not None or transform.num_draws > 0
    if isinstance(transform, CutsSounds):
        wanted, fits = "sounds", "audio" in kinds
    elif cuts_videos(transform):
        wanted, fits = "videos", "video" in kinds
    elif resizes or transform.function is not None:
        cut = cut_fields(manifest, transform)
        images = any(is_cut(field, transform) for field in cut.values()) or "video" in kinds
        wanted, fits = "images", images or (bool(cut) and not resizes)
    else:
        return
    if fits:
        return
    what = f"changes {wanted}, and the data has none"
    fix = "choose transform=none"
    if deep := [name for name, field in fields if _is_deep(field)]:
        dtype = manifest.fields[deep[0]].dtype
        what = f"cuts images of 8 bits, and cannot change {', '.join(deep)} of {dtype}"
        fix = "choose transform=none and an augment=, or pack images of 8 bits"
    raise ConfigError(199, "transform", what, fix)


def _is_deep(field: Field) -> bool:
    """Return whether a field looks like pixels [C, H, W] of more than 8 bits, which stay whole."""
    is_wide = field.dtype == "uint16" or np.dtype(field.dtype).kind == "f"
    return field.encoding == "raw" and len(field.shape) == 3 and is_wide
