"""Data that a trained model gets without packing, and what is predicted for its images.

Data is prepared like that of training, and read once.
"""

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts import data, prediction
from framework.contracts import records as contract
from framework.contracts.data import MicroBatch, MicroBatches, Source, SourceContext
from framework.contracts.records import Chunk, Field, InputTraits, Manifest, RecordInput
from framework.data.reader import BatchReader, Request
from framework.data.source import StoreSource
from framework.errors import ConfigError, DataError
from framework.input.rows import read_file
from framework.measure.clock import Stages
from framework.media.decode import encode_png
from framework.media.scale import boxes_in_image, map_in_image
from framework.order.batches import Order
from framework.pack.jobs import as_written, item_error, joined, prepared
from framework.pack.marked import MarkedInput
from framework.pack.packing import BadItem, bad_item
from framework.pack.preparation import Preparation
from framework.store.open_store import ChunkStore, ItemStore, as_read
from framework.system.native import limit_threads

PART = "part"  # the field of a batch with the number of its part
FORMS = "a list of paths, PIL images or arrays [H, W, C], or a tensor [B, C, H, W]"
Size = tuple[int, int]


def preparation(given: Manifest, train: Manifest, scales: bool) -> Preparation | None:
    """Return what packing did to the training data, for other data; None if there is nothing to do.

    Arrays without loss become PNGs, which the reader cuts and scales. Those of 16 bits stay arrays,
    with the channels that they had in training. What a store holds has been prepared already. With
    ``scales``, images are scaled as in packing, too.
    """
    deep = {
        trained.shape[0]
        for name, field in given.fields.items()
        if field.encoding == "image" and (trained := train.fields.get(name)) is not None
        if trained.dtype == "uint16" and trained.kind != "labels" and len(trained.shape) == 3
    }
    options = {} if given.options else train.options
    kinds = {field.kind for field in given.fields.values()}
    rates = [("audio", "rate"), ("video", "frame_rate")]
    chosen = {name: options.get(name) for kind, name in rates if kind in kinds}
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
    def __init__(self, source: RecordInput, prepare: Preparation) -> None:
        self.source = source
        self._prepare = prepare
        self.manifest = replace(source.manifest, fields=prepare.fields(source))

    def read(self, start: int, stop: int) -> Chunk:
        return prepared(self.source, self._prepare, start, stop)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def item_files(self, index: int) -> Sequence[str]:
        return contract.input_traits(self.source).item_files(index)


@final
class _StoreItems:
    def __init__(self, store: contract.RecordStore) -> None:
        self.manifest = store.manifest
        self.name = store.name
        self._store = store

    def read(self, start: int, stop: int) -> Chunk:
        return self.chunk(torch.arange(start, stop))

    def chunk(self, indices: Tensor) -> Chunk:
        keys = [self._store.key(index) for index in indices.tolist()]
        return Chunk(as_written(self._store.read(indices)), keys)


@final
class PreparedStore(contract.RecordStore):
    """A store whose images, sounds and videos become as those of ``train`` when they are read."""

    has_columns = True

    def __init__(self, store: contract.RecordStore, train: Manifest) -> None:
        self._store = store
        self._items = _StoreItems(store)
        self._prepare = preparation(store.manifest, train, scales=True)
        fields = store.manifest.fields
        if self._prepare is not None:
            fields = self._prepare.fields(self._items)
        fields = {name: as_trained(field, train.fields.get(name)) for name, field in fields.items()}
        self._manifest = replace(store.manifest, fields=fields)
        self.changes = self._prepare is not None or fields != store.manifest.fields

    def key(self, index: int) -> str:
        return self._store.key(index)

    def name(self, index: int) -> str:
        return self._store.name(index)

    def check(self) -> None:
        self._store.check()

    def close(self) -> None:
        self._store.close()

    def read(self, indices: Tensor, views: Collection[str] = ()) -> contract.Records:
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

    def damaged(self, indices: Tensor, records: contract.Records) -> list[int]:
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

    ``fields`` are those that batches have; the input may have others. Each of ``ranges`` becomes a
    part. With ``skip_bad`` bad items are left out; otherwise the first one raises its error.
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
            for following in range(1, len(self.ranges) + 1):
                part = ahead.pop().result()
                ahead += [reader.submit(self._read, items) for items in self.ranges[following:][:1]]
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
                good: list[int] = []
                for index in order.records(0, first, stop).tolist():
                    try:
                        source.read(Request(0, torch.tensor([index]), training=False))
                        good.append(index)
                    except DataError as error:
                        item, name = part.item_numbers[index], part.store.name(index)
                        part.bad.append(bad_item(item, name, error))
                step += 1
                if good:
                    batch = source.read(Request(0, torch.tensor(good), training=False))
                    yield MicroBatch({**batch, PART: part.items.number}, 1.0, True)
            self._stages.add_slices([source.stages()])

    def _read(self, items: ItemRange) -> ReadPart:
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
            # one by one, since items are not a record each, or some are bad
            chunks: list[Chunk] = []
            numbers = []
            for item in range(items.start, items.stop):
                try:
                    chunk = self.source.read(item, item + 1)
                except DataError as error:
                    if not self.skip_bad:
                        raise
                    bad.append(bad_item(item, self.source.name(item), error))
                    continue
                numbers += [item] * len(chunk.keys)
                if chunk.keys:
                    chunks.append(chunk)
            chunk = joined(chunks, self.source.manifest.fields)
        keys = chunk.keys

        def name(index: int) -> str:  # what errors call a record
            item = self.source.name(numbers[index])
            return item if keys[index] in item else f"{item}: {keys[index]}"

        return ReadPart(items, ChunkStore(chunk, self.manifest, name), numbers, bad)

    def stages(self) -> dict[str, float]:
        return self._stages.take()


@final
class ImageInput:
    """Images in memory, or named by their paths, as an input with the field ``name``.

    They are paths, PIL images, arrays uint8 or uint16 [H, W] or [H, W, 1 or 3], or a tensor uint8
    or uint16 [B, C, H, W]. ConfigError C360 for anything else.
    """

    def __init__(self, images: Any, name: str) -> None:
        field = Field("uint8", (3, None, None), "image")
        self._images = images
        if isinstance(images, Tensor):
            if images.dtype not in (torch.uint8, torch.uint16):
                what = f"is {_form(images)}, and pixels must be uint8 or uint16"
                fix = "convert it, or give floats as the model gets them"
                raise ConfigError(360, "images", what, fix)
            field = Field(str(images.dtype).removeprefix("torch."), tuple(images.shape[1:]))
            values: Any = images.cpu().numpy()
        elif isinstance(images, str | bytes | os.PathLike):
            raise ConfigError(360, "images", f"is one image, and not {FORMS}", "put it into a list")
        else:
            values = [_file_bytes(image, number) for number, image in enumerate(images)]
        self._records = {name: values}
        self.manifest = Manifest(len(images), {name: field}, source="images")

    def read(self, start: int, stop: int) -> Chunk:
        records = {name: values[start:stop] for name, values in self._records.items()}
        return Chunk(records, [str(number) for number in range(start, stop)])

    def name(self, index: int) -> str:
        image = self._images[index]
        return os.fspath(image) if isinstance(image, str | os.PathLike) else f"images[{index}]"


def _file_bytes(image: Any, number: int) -> bytes:
    if isinstance(image, str | os.PathLike):
        return read_file(os.fspath(image))
    if hasattr(image, "convert") and hasattr(image, "save"):  # PIL's, without importing it
        if image.mode[0] not in "IF":  # these have more than 8 bits, which PIL would clip
            if image.mode not in ("L", "RGB"):
                image = image.convert("RGB")
            file = BytesIO()
            image.save(file, "PNG")
            return file.getvalue()
        pixels = np.asarray(image)
        if pixels.dtype.kind != "f" and pixels.min() >= 0 and pixels.max() < 1 << 16:
            image = pixels.astype(np.uint16)
    is_array = isinstance(image, np.ndarray) and image.dtype in (np.uint8, np.uint16)
    if is_array and image.ndim in (2, 3):
        planes = np.atleast_3d(image).transpose(2, 0, 1)
        if planes.shape[0] in (1, 3):
            return encode_png(np.ascontiguousarray(planes))
    what = f"is {_form(image)}, and images must be {FORMS}, with 1 or 3 channels of uint8 or uint16"
    raise ConfigError(360, f"images[{number}]", what, "convert it")


def _form(image: Any) -> str:
    if isinstance(image, np.ndarray | Tensor):
        return f"{image.dtype} {list(image.shape)}"
    return f"of the type {type(image).__name__}"


class ImagePlace(NamedTuple):
    size: Size  # (height, width) of the image
    window: Sequence[int]  # top, left, height and width of the part
    seen: Size  # (height, width) that the part was scaled to


def image_places(
    reader: BatchReader, name: str, values: Any, indices: Tensor
) -> list[ImagePlace] | None:
    """Return the place of each record's image.

    None if the field is no image, or if a function of the transform may have moved its pixels.
    ``values`` are what the store gave for the field ``name`` of the records ``indices``.
    """
    field = reader.store.manifest.fields[name]
    transform: data.Transform = reader.transform
    if field.channels is None or transform.function is not None:
        return None
    sizes = reader.pictures.opened(field, values, indices).sizes
    windows = torch.cat([torch.zeros_like(sizes), sizes], dim=1)
    if name in reader.cut:
        windows = transform.windows(sizes, None)[:, :4]
    pairs = zip(map(tuple, sizes.tolist()), windows.tolist(), strict=True)
    return [ImagePlace(size, window, transform.size or tuple(window[2:])) for size, window in pairs]


def in_images(
    predictions: prediction.Predictions, places: Sequence[ImagePlace] | None
) -> list[Any]:
    """Return the label map (NumPy [H, W]) or the ``ScoredBoxes`` of each record, on the host.

    They are in the pixels of the given images, or without places in those that the model saw.
    """
    if isinstance(predictions, prediction.PredictedMaps):
        maps = list(predictions.values.cpu().numpy())
        if places is None:
            return maps
        pairs = zip(maps, places, strict=True)
        return [map_in_image(numbers, place.window, place.size) for numbers, place in pairs]
    assert isinstance(predictions, prediction.PredictedBoxes)
    boxes = [prediction.ScoredBoxes(*(part.cpu() for part in own)) for own in predictions.values]
    if places is None:
        return boxes
    return [
        own._replace(boxes=boxes_in_image(own.boxes, place.window, place.seen, place.size))
        for own, place in zip(boxes, places, strict=True)
    ]


def as_dicts(
    predictions: prediction.Predictions, places: Sequence[ImagePlace] | None, classes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield what is predicted for each record of a batch, as ``SavedRun.predict`` describes it.

    Label maps and boxes are as ``in_images`` returns them. ``classes`` are names by number.
    """
    if isinstance(predictions, prediction.ClassProbabilities):
        for row in predictions.values.cpu().tolist():
            names = [class_name(classes, number) for number in range(len(row))]
            best = row.index(max(row))
            shares = dict(zip(names, row, strict=True))
            yield {"class": names[best], "probability": row[best], "probabilities": shares}
    elif isinstance(predictions, prediction.PredictedMaps):
        yield from ({"map": numbers} for numbers in in_images(predictions, places))
    elif isinstance(predictions, prediction.PredictedBoxes):
        for scored in in_images(predictions, places):
            yield {
                "boxes": scored.boxes.numpy(),
                "scores": scored.scores.numpy(),
                "classes": [class_name(classes, number) for number in scored.labels.tolist()],
            }
    elif isinstance(predictions, prediction.PredictedTexts):
        yield from ({"text": text} for text in predictions.values)
    elif isinstance(predictions, prediction.PredictedNumbers):
        yield from ({"numbers": numbers} for numbers in predictions.values.cpu().numpy())
    else:
        yield from ({"image": image} for image in as_pixels(predictions))


def as_pixels(predictions: prediction.PredictedImages) -> list[np.ndarray]:
    pixels = (predictions.values * 255).round().clamp(0, 255).to(torch.uint8)
    return list(pixels.permute(0, 2, 3, 1).cpu().numpy())


def class_name(classes: Sequence[str], number: int) -> str:
    if 0 <= number < len(classes):
        return classes[number]
    return str(number)
