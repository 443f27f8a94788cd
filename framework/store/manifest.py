"""A store's manifest as JSON text, and back."""

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from framework.contracts.records import KINDS, ChannelStatistics, Field, Manifest, Shard
from framework.errors import DataError

SCHEMA = 3
READABLE = (2, 3)  # before schema 3 fields had no kind, which is derived, and no statistics


def to_json(manifest: Manifest) -> str:
    """With a CRC32 of itself: a flipped bit in a name or a shape must not be believed."""
    data = asdict(manifest)
    return json.dumps({**data, "crc32": _crc(data)})


def _crc(data: dict[str, Any]) -> int:
    return crc32(
        json.dumps(data).encode()
    )  # ASCII: names of files that are no UTF-8 survive as escapes


def from_json(path: str, text: str | bytes) -> Manifest:
    """Raises DataError D104 where the text is no manifest, is damaged, or is one of another schema."""
    try:
        data = json.loads(text)
        schema = int(data["schema"])
        if schema not in READABLE:
            what = f"written with schema {schema}, this version reads {SCHEMA}"
            raise DataError(
                104, path, what, "update paceline" if schema > SCHEMA else "pack it again"
            )
        if data.pop("crc32") != _crc(data):
            raise ValueError("its checksum differs")
        fields = {name: _field(described) for name, described in data.pop("fields").items()}
        shards = [Shard(**shard) for shard in data.pop("shards")]
        statistics = {
            name: _statistics(name, block, fields)
            for name, block in data.pop("statistics", {}).items()
        }
        return Manifest(
            fields=fields, shards=shards, statistics=statistics, **_checked(data, fields, shards)
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise DataError(104, path, f"its manifest is damaged ({error})", "pack it again") from error


def _statistics(name: str, block: dict[str, Any], fields: dict[str, Field]) -> ChannelStatistics:
    """The statistics of the field ``name``. ValueError for numbers that cannot be."""
    given = ChannelStatistics(tuple(block["mean"]), tuple(block["std"]))
    numbers = (*given.mean, *given.std)
    finite = all(math.isfinite(number) for number in numbers)  # TypeError for what is no number
    if (
        name not in fields
        or not finite
        or len(given.mean) != len(given.std)
        or min(given.std, default=0) < 0
    ):
        raise ValueError(f"statistics of {name!r} that cannot be")
    return given


def _field(described: dict[str, Any]) -> Field:
    kind = described.get("kind", "")
    if not isinstance(kind, str):
        raise TypeError(f"a kind of {kind}")
    return Field(described["dtype"], tuple(described["shape"]), described["encoding"], kind)


def _checked(data: dict[str, Any], fields: dict[str, Field], shards: list[Shard]) -> dict[str, Any]:
    """ValueError for what no writer of ours writes, whatever its checksum says."""
    sizes = [size for field in fields.values() for size in field.shape if size is not None]
    sizes += [
        data["num_records"],
        *(size for shard in shards for size in (shard.num_records, shard.size_bytes)),
    ]
    if any(type(size) is not int or size < 0 for size in sizes) or any(
        type(shard.name) is not str for shard in shards
    ):
        raise ValueError("sizes that cannot be")
    for name, field in fields.items():
        if field.encoding not in ("raw", "image") or np.dtype(field.dtype).kind not in "biufc":
            raise ValueError(f"field {name!r} is {field.encoding} {field.dtype}")
        if field.encoding == "raw" and None in field.shape:
            raise ValueError(f"field {name!r} has no size")
        if field.kind not in KINDS or (
            field.kind == "labels" and (field.dtype, field.channels) != ("uint8", 1)
        ):
            raise ValueError(f"field {name!r} is {field.kind} {field.dtype}")
    return data
