"""What a store holds, in words and as a picture."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import torch

from framework.contracts import Records, RecordStore
from framework.data.decode import BadImage, decode
from framework.data.store import open_store
from framework.durable import open_durable
from framework.errors import DataError
from framework.order import spread

TILE, EDGE = 96, 3  # pixels: small images grow to a tile less its edges, large ones shrink
GRAY = 96


def describe(path: str) -> Iterator[str]:
    """Lines about the store at ``path``: manifest, fields with their sizes, classes."""
    store = open_store(path)
    manifest = store.manifest
    yield f"{path}: {manifest.num_records} records, {os.path.getsize(path):,} bytes, schema {manifest.schema}"
    yield f"source: {manifest.source}"
    if manifest.options:
        yield f"options: {', '.join(f'{name}={value}' for name, value in manifest.options.items())}"
    sizes = _mean_bytes(store)
    for name, field in manifest.fields.items():
        shape = "x".join("?" if size is None else str(size) for size in field.shape) or "scalar"
        total = sizes[name] * manifest.num_records
        yield f"field {name}: {field.encoding} {field.dtype} {shape}, {sizes[name]:,.0f} bytes a record, about {total:,.0f} in all"
    for number, name in enumerate(manifest.classes):
        count = f"{manifest.class_counts[number]} records" if manifest.class_counts else ""
        yield f"class {number}: {name}  {count}".rstrip()
    store.close()


def _mean_bytes(store: RecordStore) -> dict[str, float]:
    """Bytes a record per field, over a sample."""
    records = _sample(store, 256)
    return {name: float(np.mean([_num_bytes(value) for value in values])) for name, values in records.items()}


def _num_bytes(value: torch.Tensor | memoryview) -> int:
    return value.nbytes if isinstance(value, torch.Tensor) else len(value)


def _sample(store: RecordStore, count: int) -> Records:
    return store.read(_spread(store, count))


def _spread(store: RecordStore, count: int) -> torch.Tensor:
    num_records = store.manifest.num_records
    return spread(num_records, min(count, num_records))


def write_grid(path: str, grid: Path, count: int) -> bool:
    """A PNG of up to ``count`` records' images, evenly spread over the store. False where no field is an image."""
    store = open_store(path)
    found = [tile for name in store.manifest.fields for tile in _tiles(store, name, count)]
    store.close()
    if not found:
        return False
    columns = math.ceil(math.sqrt(len(found)))
    found += [np.full_like(found[0], GRAY)] * (-len(found) % columns)
    rows = [np.hstack(found[start : start + columns]) for start in range(0, len(found), columns)]
    with open_durable(grid) as file:
        file.write(cv2.imencode(".png", np.vstack(rows)[:, :, ::-1])[1].tobytes())
    return True


def _tiles(store: RecordStore, name: str, count: int) -> list[np.ndarray]:
    field = store.manifest.fields[name]
    if field.dtype != "uint8" or len(field.shape) != 3 or field.shape[0] not in (1, 3):
        return []
    indices = _spread(store, count)
    values = store.read(indices)[name]
    return [_tile(_pixels(store, index, value, field.shape[0])) for index, value in zip(indices.tolist(), values, strict=True)]


def _pixels(store: RecordStore, index: int, value: torch.Tensor | memoryview, channels: int) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.permute(1, 2, 0).numpy()
    try:
        return decode(value, channels)
    except BadImage as error:
        raise DataError(106, store.name(index), f"not a readable image ({error})", "mend or remove it") from error


def _tile(image: np.ndarray) -> np.ndarray:
    """RGB, TILE x TILE, not distorted, on gray, with an edge that keeps neighbors apart."""
    height, width = image.shape[:2]
    factor = (TILE - 2 * EDGE) / max(height, width)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    scaled = cv2.resize(image, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_NEAREST)
    tile = np.full((TILE, TILE, 3), GRAY, np.uint8)
    tile[EDGE : EDGE + size[1], EDGE : EDGE + size[0]] = scaled.reshape(size[1], size[0], -1)
    return tile
