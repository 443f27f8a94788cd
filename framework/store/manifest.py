"""The manifest of a store as JSON text."""

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from isal.isal_zlib import crc32

from framework.contracts.records import (
    CARRIED,
    KINDS,
    SCHEMA,
    ChannelStatistics,
    Field,
    Manifest,
    Shard,
)
from framework.errors import DataError

MOST_RECORDS = 1 << 62  # so that the sum of two numbers fits int64
ENCODINGS = ("raw", "ragged", "image", "frames")
# What a damaged manifest raises while it is read.
DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


def to_json(manifest: Manifest) -> str:
    """Return the text, which holds its own CRC32: a flipped bit in a name must be noticed."""
    data = asdict(manifest)
    data["schema"] = SCHEMA
    return json.dumps({**data, "crc32": _crc(data)})


def from_json(path: str, text: str | bytes) -> Manifest:
    """Read the manifest of the store at ``path``.

    Raises:
        DataError: D104 if the text is no manifest, is damaged, or has another schema.
    """
    try:
        data = json.loads(text)
        schema = int(data["schema"])
        if schema != SCHEMA:
            what = f"written with schema {schema}, this version reads {SCHEMA}"
            fix = "update paceline" if schema > SCHEMA else "pack it again"
            raise DataError(104, path, what, fix)
        if data.pop("crc32") != _crc(data):
            raise ValueError("its checksum differs")
        fields = {name: _field(name, block) for name, block in data.pop("fields").items()}
        shards = [Shard(**shard) for shard in data.pop("shards")]
        statistics = {
            name: ChannelStatistics(tuple(block["mean"]), tuple(block["std"]))
            for name, block in data.pop("statistics").items()
        }
        manifest = Manifest(fields=fields, shards=shards, statistics=statistics, **data)
        _check_numbers(manifest)
    except DAMAGE as error:
        raise DataError(104, path, f"its manifest is damaged ({error})", "pack it again") from error
    return manifest


def _crc(data: dict[str, Any]) -> int:
    # json writes ASCII: file names that are not UTF-8 survive as escapes.
    return crc32(json.dumps(data).encode())


def _field(name: str, block: dict[str, Any]) -> Field:
    field = Field(block["dtype"], tuple(block["shape"]), block["encoding"], block["kind"])
    if field.encoding not in ENCODINGS or np.dtype(field.dtype).kind not in "biufc":
        raise ValueError(f"field {name!r} is {field.encoding} {field.dtype}")
    torch.from_numpy(np.empty(0, field.dtype))  # TypeError for a dtype that torch lacks
    no_size = field.encoding == "raw" and None in field.shape
    if field.encoding == "ragged":
        no_size = field.shape[:1] != (None,) or bool({None, 0} & set(field.shape[1:]))
    if no_size:
        raise ValueError(f"field {name!r} has no size")
    if block["kind"] not in KINDS or not fits_kind(field):
        raise ValueError(f"field {name!r} is {field.kind} {field.dtype} {list(field.shape)}")
    return field


def fits_kind(field: Field) -> bool:
    """Return whether a field can be of its kind."""
    if field.encoding == "frames" or field.kind == "video":
        form = (field.encoding, field.kind, field.dtype)
        if form != ("frames", "video", "uint8") or len(field.shape) != 4:
            return False
        count, height, width, channels = field.shape
        is_known = (height is None) == (width is None) and 0 not in (height, width)
        return count is None and channels in (1, 3) and is_known
    if field.kind == "labels":
        return field.dtype == "uint8" and field.channels == 1
    if field.kind in (*CARRIED, "audio"):
        return (field.dtype, field.shape) == ("uint8", (None,))
    if field.kind == "boxes":
        return (field.dtype, field.shape) == ("float32", (None, 4))
    if field.kind == "points":
        return field.dtype == "float32" and field.shape[-1:] in ((2,), (3,))
    return True


def _check_numbers(manifest: Manifest) -> None:
    """Refuse what no writer of ours writes, even if its checksum is right."""
    sizes: list[Any] = [manifest.num_records]
    for field in manifest.fields.values():
        sizes += [size for size in field.shape if size is not None]
    for shard in manifest.shards:
        sizes += [shard.num_records, shard.size_bytes]
        if type(shard.name) is not str:
            raise TypeError(f"a shard has the name {shard.name}")
    if manifest.first_key is not None:
        sizes += [manifest.first_key, MOST_RECORDS - manifest.first_key - manifest.num_records]
    if any(type(size) is not int or size < 0 for size in sizes):
        raise ValueError("impossible sizes")
    if manifest.statistics.keys() - manifest.fields.keys():
        raise ValueError("statistics of fields that it lacks")
    for name, block in manifest.statistics.items():
        mean, std = block.mean, block.std
        is_finite = all(map(math.isfinite, (*mean, *std)))  # TypeError if not a number
        if not is_finite or min(std, default=0) < 0 or len(mean) != len(std):
            raise ValueError(f"impossible statistics of {name!r}")
