"""Data that a trained model gets without packing: prepared like that of training, and read once."""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from framework.contracts.data import MicroBatch, MicroBatches, Source, SourceContext
from framework.contracts.records import (
    Chunk,
    Field,
    InputTraits,
    Manifest,
    RecordInput,
    Records,
    RecordStore,
    item_files_of,
)
from framework.data.requests import Request
from framework.data.source import StoreSource
from framework.errors import DataError
from framework.measure.clock import Stages
from framework.order.batches import Order
from framework.pack.jobs import as_written, item_error, joined, prepared
from framework.pack.marked import MarkedInput
from framework.pack.packing import BadItem, bad_item
from framework.pack.preparation import Preparation
from framework.store.open_store import ChunkStore, ItemStore, as_read
from framework.system.native import limit_threads

PART = "part"  # the field of a batch with the number of its part


def preparation(given: Manifest, train: Manifest, scales: bool) -> Preparation | None:
    """Return what packing did to the training data, for other data; None if there is nothing to do.

    Arrays without loss become PNGs, which the reader cuts and scales. Those of 16 bits stay arrays,
    with the channels that they had in training.

    Args:
        given: Describes the other data. What a store holds has been prepared already.
        train: Describes the training data.
        scales: Whether images are scaled as in packing, too.
    """
    deep = {
        trained.shape[0]
        for name, field in given.fields.items()
        if field.encoding == "image" and (trained := train.fields.get(name)) is not None
        if trained.dtype == "uint16" and trained.kind != "labels" and len(trained.shape) == 3
    }
    options = {} if given.options else train.options
    kinds = {field.kind for field in given.fields.values()}
    chosen: dict[str, Any] = {}
    if "audio" in kinds:
        chosen["rate"] = options.get("rate")
    if "video" in kinds:
        chosen["frame_rate"] = options.get("frame_rate")
    if any(field.encoding == "image" for field in given.fields.values()):
        changed = ("bit_depth", "color", *(("resize", "max_side", "size") if scales else ()))
        chosen |= {name: options.get(name) for name in ("max_pixels", *changed)}
        if deep:
            chosen["bit_depth"] = 16
            chosen["color"] = "gray" if deep == {1} else "rgb"
        if scales and options.get("encode") == "jpeg":
            chosen |= {"encode": "jpeg", "quality": options.get("quality")}
        elif any(chosen.get(name) is not None for name in changed):
            chosen["encode"] = "raw" if chosen["bit_depth"] == 16 else "png"
    known = {name: value for name, value in chosen.items() if value is not None}
    return Preparation(**known) if known or "video" in kinds else None


def as_trained(field: Field, trained: Field | None) -> Field:
    """Return an image's field with the channels that it had in training."""
    if trained is None or field.encoding != "image" or trained.channels is None:
        return field
    return replace(field, shape=(trained.channels, None, None))


@final
class PreparedInput(InputTraits):
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


@final
class _StoreItems:
    """The records of a store as an input has them."""

    def __init__(self, store: RecordStore) -> None:
        self.manifest = store.manifest
        self.name = store.name
        self._store = store

    def read(self, start: int, stop: int) -> Chunk:
        return self.chunk(torch.arange(start, stop))

    def chunk(self, indices: Tensor) -> Chunk:
        keys = [self._store.key(index) for index in indices.tolist()]
        return Chunk(as_written(self._store.read(indices)), keys)


@final
class PreparedStore(RecordStore):
    """A store whose images, sounds and videos become as those of ``train`` when they are read."""

    has_columns = True

    def __init__(self, store: RecordStore, train: Manifest) -> None:
        self._store = store
        self._items = _StoreItems(store)
        self._prepare = preparation(store.manifest, train, scales=True)
        fields = store.manifest.fields
        if self._prepare is not None:
            fields = self._prepare.fields(self._items)
        fields = {name: as_trained(field, train.fields.get(name)) for name, field in fields.items()}
        self._manifest = replace(store.manifest, fields=fields)
        self.changes = self._prepare is not None or fields != store.manifest.fields
        self.key = store.key
        self.name = store.name
        self.check = store.check
        self.close = store.close

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        if self._prepare is None:
            return self._store.read(indices, views)
        chunk = self._items.chunk(indices)
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
        return self._store.column(name)

    def lengths(self, name: str) -> Tensor:
        return self._store.lengths(name)


class ItemRange(NamedTuple):
    """Items of an input that are read together, and become one part."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class ReadPart:
    """The records of a part."""

    items: ItemRange
    store: ChunkStore | ItemStore  # with the fields that batches have
    item_numbers: Sequence[int]  # the item of each record
    bad: list[BadItem]  # what was left out so far


@final
class InputSource(Source):
    """Batches of the records of an input, in order. The last batch of a part may be short.

    Every batch has ``part``, the number of its part, and ``index``, the numbers of its records
    within the part. ``parts`` holds what was read: the consumer removes what it is done with. A
    part without records has no batch, but is there before any batch of the next one.

    Args:
        source: The input.
        fields: The fields that batches have, by name. The input may have others.
        ranges: The parts to read.
        context: The transform, the workers and the other settings.
        skip_bad: Whether bad items are left out. Otherwise the first one raises its error.
    """

    graph_refusal = "its records are read once"

    def __init__(
        self,
        source: RecordInput,
        fields: Mapping[str, Field],
        ranges: Sequence[ItemRange],
        context: SourceContext,
        skip_bad: bool,
    ) -> None:
        self.source = source
        self.ranges = list(ranges)
        self.context = replace(context, order_choice=None, verify="off")
        self.skip_bad = skip_bad
        self.manifest: Manifest = replace(source.manifest, fields=dict(fields))
        self.order: Order = self.context.order(max(1, self.manifest.num_records))
        self.parts: dict[int, ReadPart] = {}
        self._stages = Stages()
        inner = source
        while isinstance(inner, MarkedInput | PreparedInput):
            inner = inner.source
        self._key: Callable[[int], str] | None = None  # of an item, if workers read its file
        if isinstance(inner, InputTraits) and inner.file_per_record:
            self._key = inner.key
        self._has_records_in_items = False  # whether an item has had none or several

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        with ThreadPoolExecutor(1, "paceline-input", limit_threads, (1,)) as reader:
            ahead = [reader.submit(self._read, items) for items in self.ranges[:1]]
            for following in [*self.ranges[1:], None]:
                if not ahead:
                    return
                part = ahead.pop().result()
                if following is not None:
                    ahead.append(reader.submit(self._read, following))
                self.parts[part.items.number] = part
                if part.store.manifest.num_records:
                    yield from self._batches_of(part)

    def _batches_of(self, part: ReadPart) -> Generator[MicroBatch]:
        source = StoreSource(part.store, self.context)
        order = source.order
        step = 0
        while step < order.num_steps:
            try:
                with closing(source.batches(0, step)) as batches:
                    for batch, weight, last in batches:
                        step += 1
                        yield MicroBatch({**batch, PART: part.items.number}, weight, last)
            except DataError:
                if not self.skip_bad:
                    raise
                first = step * order.batch_size
                stop = min(first + order.batch_size, order.num_in_batches)
                good = self._readable(source, part, order.records(0, first, stop))
                step += 1
                if len(good):
                    batch = source.read(Request(0, good, training=False))
                    yield MicroBatch({**batch, PART: part.items.number}, 1.0, True)
            self._stages.add_slices([source.stages()])

    def _readable(self, source: StoreSource, part: ReadPart, indices: Tensor) -> Tensor:
        """Return the records that can be read one by one, and note the others as bad."""
        good: list[int] = []
        for index in indices.tolist():
            try:
                source.read(Request(0, torch.tensor([index]), training=False))
                good.append(index)
            except DataError as error:
                part.bad.append(bad_item(part.item_numbers[index], part.store.name(index), error))
        return torch.tensor(good, dtype=torch.int64)

    def _read(self, items: ItemRange) -> ReadPart:
        """Read the items of a part: all at once, or one by one if they are not a record each."""
        bad: list[BadItem] = []
        numbers = list(range(items.start, items.stop))
        if self._key is not None:  # the workers read the files
            keys = [self._key(number) for number in numbers]
            lazy = ItemStore(self.source, items.start, keys, self.manifest)
            return ReadPart(items, lazy, numbers, bad)
        chunk: Chunk | None = None
        if not self._has_records_in_items:
            try:
                chunk = self.source.read(items.start, items.stop)
                self._has_records_in_items = len(chunk.keys) != len(numbers)
            except DataError:
                if not self.skip_bad:
                    raise
        if chunk is None or self._has_records_in_items:
            chunk, numbers = self._read_one_by_one(items, bad)
        keys = chunk.keys

        def name(index: int) -> str:  # what errors call a record
            item = self.source.name(numbers[index])
            return item if keys[index] in item else f"{item}: {keys[index]}"

        return ReadPart(items, ChunkStore(chunk, self.manifest, name), numbers, bad)

    def _read_one_by_one(self, items: ItemRange, bad: list[BadItem]) -> tuple[Chunk, list[int]]:
        chunks: list[Chunk] = []
        numbers: list[int] = []
        for item in range(items.start, items.stop):
            try:
                chunk = self.source.read(item, item + 1)
            except DataError as error:
                if not self.skip_bad:
                    raise
                bad.append(bad_item(item, self.source.name(item), error))
                continue
            chunks.append(chunk)
            numbers += [item] * len(chunk.keys)
        good = [chunk for chunk in chunks if chunk.keys]
        return joined(good, self.source.manifest.fields), numbers

    def stages(self) -> dict[str, float]:
        return self._stages.take()
