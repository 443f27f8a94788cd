"""Prepare records for a trained model as packing prepared its training data."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.records import (
    Chunk,
    Field,
    Manifest,
    RecordInput,
    Records,
    RecordStore,
    item_files_of,
)
from framework.errors import DataError
from framework.pack.images import Preparation
from framework.pack.jobs import item_error, prepared
from framework.pack.join import as_written
from framework.store.chunk_store import as_read
from framework.store.columns import column_of, lengths_of


def preparation(given: Manifest, train: Manifest, scales: bool) -> Preparation | None:
    """Return what packing did to the training data, for other data; None if there is nothing to do.

    Arrays without loss become PNGs, which the reader cuts and scales. Those of 16 bits stay arrays,
    with the channels that they had in training.

    Args:
        given: Describes the other data. What a store holds has been prepared already.
        train: Describes the training data.
        scales: Whether images are scaled as in packing, too.
    """
    fields = given.fields.values()
    deep = {
        trained.shape[0]
        for name, field in given.fields.items()
        if field.encoding == "image" and (trained := train.fields.get(name)) is not None
        if trained.dtype == "uint16" and trained.kind != "labels" and len(trained.shape) == 3
    }
    options = {} if given.options else train.options
    chosen = {name: options.get(name) for name in ("rate", "frame_rate")}
    if any(field.encoding == "image" for field in fields):
        changed = ("bit_depth", "color", *(("resize", "max_side", "size") if scales else ()))
        chosen |= {name: options.get(name) for name in ("max_pixels", *changed)}
        if deep:
            chosen["bit_depth"] = 16
            chosen["color"] = "gray" if deep == {1} else "rgb"
        changes = any(chosen.get(name) is not None for name in changed)
        if scales and options.get("encode") == "jpeg":
            chosen |= {"encode": "jpeg", "quality": options.get("quality")}
        elif changes:
            chosen["encode"] = "raw" if chosen["bit_depth"] == 16 else "png"
    if not any(field.kind == "audio" for field in fields):
        chosen.pop("rate")
    has_videos = any(field.kind == "video" for field in fields)
    if not has_videos:
        chosen.pop("frame_rate")
    known = {name: value for name, value in chosen.items() if value is not None}
    return Preparation(**known) if known or has_videos else None


@final
class PreparedInput:
    """An input whose images, sounds and videos are prepared as packing does."""

    def __init__(self, source: RecordInput, prepare: Preparation) -> None:
        self.source = source
        self._prepare = prepare
        self.manifest = replace(source.manifest, fields=prepare.fields(source))

    def read(self, start: int, stop: int) -> Chunk:
        return prepared(self.source, self._prepare, start, stop)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def item_files(self, index: int) -> Sequence[str]:
        return item_files_of(self.source, index)


def as_trained(field: Field, trained: Field | None) -> Field:
    """Return an image's field with the channels that it had in training."""
    if trained is None or field.encoding != "image" or trained.channels is None:
        return field
    return replace(field, shape=(trained.channels, None, None))


@final
class PreparedStore:
    """A store whose images, sounds and videos are as those of the training data when they are read.

    Args:
        store: The store.
        train: Describes the training data.
    """

    def __init__(self, store: RecordStore, train: Manifest) -> None:
        self._store = store
        self._items = _StoreItems(store)
        self._prepare = preparation(store.manifest, train, scales=True)
        fields = store.manifest.fields
        if self._prepare is not None:
            fields = self._prepare.fields(self._items)
        fields = {name: as_trained(field, train.fields.get(name)) for name, field in fields.items()}
        self.manifest = replace(store.manifest, fields=fields)
        self.changes = self._prepare is not None or fields != store.manifest.fields

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        if self._prepare is None:
            return self._store.read(indices, views)
        chunk = _chunk(self._store, indices)
        try:
            records = self._prepare(chunk).records
        except DataError as error:
            if len(indices) > 1:  # one of them alone tells which it is
                for index in indices.split(1):
                    self.read(index)
                raise
            raise item_error(error, self._items, int(indices[0]), chunk.keys[0]) from error
        return {name: as_read(values) for name, values in records.items()}

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return self._store.damaged(indices, records) if self._prepare is None else []

    def column(self, name: str) -> Any:
        return column_of(self._store, name)

    def lengths(self, name: str) -> Tensor:
        return lengths_of(self._store, name)

    def key(self, index: int) -> str:
        return self._store.key(index)

    def name(self, index: int) -> str:
        return self._store.name(index)

    def check(self) -> None:
        self._store.check()

    def close(self) -> None:
        self._store.close()


@final
class _StoreItems:
    """The records of a store as an input has them."""

    def __init__(self, store: RecordStore) -> None:
        self.manifest = store.manifest
        self._store = store

    def read(self, start: int, stop: int) -> Chunk:
        return _chunk(self._store, torch.arange(start, stop))

    def name(self, index: int) -> str:
        return self._store.name(index)


def _chunk(store: RecordStore, indices: Tensor) -> Chunk:
    keys = [store.key(index) for index in indices.tolist()]
    return Chunk(as_written(store.read(indices)), keys)


@final
class ChunkInput:
    """Records that are in memory, as an input."""

    def __init__(self, chunk: Chunk, manifest: Manifest, name: Callable[[int], str]) -> None:
        self.manifest = manifest
        self._name = name
        self._chunk = chunk

    def read(self, start: int, stop: int) -> Chunk:
        records = {name: values[start:stop] for name, values in self._chunk.records.items()}
        return Chunk(records, self._chunk.keys[start:stop])

    def name(self, index: int) -> str:
        return self._name(index)
