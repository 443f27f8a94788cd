"""What is known of the records of a store: the facts that an order may ask for, and statistics.

The mean and the standard deviation per channel are of decoded values. Their sample is the same for
every store: up to ``NUM_RECORDS`` records, spread evenly. Every value has the same weight.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import cv2
import numpy as np
import torch
from torch import Tensor

from framework.contracts import records as contract
from framework.contracts.class_labels import ONE_PER_RECORD
from framework.contracts.records import ChannelStatistics, Field, Records, RecordStore
from framework.errors import ConfigError, DataError
from framework.measure.host import num_cores
from framework.media.decode import decode
from framework.media.header import BadImage, read_header
from framework.media.sound_video import BadFrames, frames_of
from framework.order.batches import spread

SIZES = ("height", "width")
RECORD = "record"  # its number in the data set
START_BYTES = 64 << 10  # of a JPEG; they hold its size, unless a large preview comes before it
NUM_RECORDS = 1000
WHITE = {"uint8": 255, "uint16": 65535}  # the largest value, by which normalizing divides
READ_RECORDS = 16  # at once, so that large images do not fill the memory
DIGITS = 6  # significant digits that do not depend on the layout or order of the values
# The statistics of stores, by digest and fields: `diagnose` opens a store many times.
MEASURED: dict[tuple[str, str], dict[str, ChannelStatistics]] = {}


def is_number(field: Field) -> bool:
    """Return whether a field is one number per record: its shape is [] or [1]."""
    return field.encoding == "raw" and field.shape in ONE_PER_RECORD


@final
class StoreFacts:
    """What an order may ask about the records of a store. None: only ``labels`` may be known."""

    def __init__(self, store: RecordStore | None, labels: Sequence[Any] | None = None) -> None:
        self.store: Any = store
        self._labels = labels
        self._fields: Mapping[str, Field] = {}
        self.classes: Sequence[str] = ()
        if store is not None:
            self._fields, self.classes = store.manifest.fields, store.manifest.classes
        fields = self._fields
        self._numbers = [name for name, field in fields.items() if is_number(field)]
        pictures = [name for name, field in fields.items() if field.channels is not None]
        # The field whose size ``width`` and ``height`` are: ``image``, or the first picture.
        self._picture = next((name for name in ("image", *pictures) if name in pictures), "")
        names = [own for own in fields if own in self._numbers or fields[own].kind == "text"]
        extra = [*(SIZES if self._picture else ()), *(() if store is None else (RECORD,))]
        self.names: Sequence[str] = [*names, *(name for name in extra if name not in fields)]

    def lengths(self, name: str | None) -> Tensor:
        ragged = [own for own, field in self._fields.items() if field.encoding == "ragged"]
        if name is None and len(ragged) == 1:
            name = ragged[0]
        if name in ragged:
            return self.store.lengths(name)
        what = "is not a field of any length"
        if name is None:
            what = "no field of the data has any length"
            if ragged:
                what = "does not say which field's lengths count"
        raise self._unknown(name or "null", what, ragged)

    def answer(self, name: str) -> np.ndarray | None:
        if name not in self.names:
            return None
        if name == RECORD and name not in self._fields:
            return np.arange(self.store.manifest.num_records)
        if name not in self._fields:
            return self._sizes[:, SIZES.index(name)]
        if name in self._numbers:
            return self.values(name)
        arrays = self.store.column(name).arrays()
        texts = [array.tobytes().decode(errors="replace") for array in arrays]
        return np.array(texts, object)  # not as wide as the longest text

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The height and width of each record's picture, upright, in pixels: int64 [N, 2]."""
        store, name = self.store, self._picture
        field, count = self._fields[name], store.manifest.num_records
        sizes = np.zeros((count, 2), np.int64)
        if field.encoding != "image":
            shape = field.shape[:2] if field.interleaved else field.shape[1:]
            sizes[:] = [size or 0 for size in shape]
            return sizes
        for block in torch.arange(count).split(contract.BLOCK_RECORDS):
            if store.reads_starts:
                parts: Any = [store.read_start(index, START_BYTES) for index in block.tolist()]
            else:  # views copy none of the other fields
                parts = store.read(block, views=self._fields)[name]
            for index, data in zip(block.tolist(), parts, strict=True):
                header = None
                with suppress(BadImage):
                    header = read_header(data)
                # Formats other than JPEG may say at the end how an image is turned.
                is_cut = store.reads_starts and len(data) == START_BYTES
                if header is None or (is_cut and header.format != "jpeg"):
                    try:
                        header = read_header(store.read(torch.tensor([index]))[name][0])
                    except BadImage as error:
                        where = store.name(index)
                        raise DataError(104, where, str(error), "verify the store") from error
                sizes[index] = header.size
        return sizes

    def values(self, name: str) -> np.ndarray:
        if name in self._numbers:
            return self.store.column(name).numpy().reshape(-1)
        if name == contract.LABEL and self._labels is not None:
            return np.asarray(self._labels)
        raise self._unknown(name, "is not a field with one number per record", self._numbers)

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        lists = [own for own, field in self._fields.items() if field == Field(field.dtype, (None,))]
        if name in lists:
            ragged = self.store.column(name)
            return ragged.values.numpy(), ragged.lengths.numpy()
        if name in self._numbers:
            values = self.values(name)
            return values, np.ones(len(values), np.int64)
        known = [*self._numbers, *lists]
        raise self._unknown(name, "is not a field with numbers per record", known)

    def _unknown(self, name: str, what: str, known: Sequence[str]) -> ConfigError:
        fix = "choose order=full"
        if known:
            fix = f"choose one of {', '.join(known)}"
        if self.store is None:
            what = "this data cannot tell the fields of its records before it reads them"
            fix = "give weights by order=weighted order.file=FILE, or choose order=full"
        return ConfigError(200, f"order.field = {name}", what, fix)


def num_channels(field: Field) -> int | None:
    """Return the number of channels of a field that has statistics, or None."""
    if field.kind == "labels":
        return None
    if field.kind == "video":
        return field.shape[3]
    if field.channels is not None:
        return field.channels
    measurable = np.dtype(field.dtype).kind == "f" or field.dtype in WHITE
    if field.encoding != "raw" or len(field.shape) != 3 or not measurable:
        return None
    return field.shape[0]


def sample_indices(num_records: int) -> Tensor:
    """Return the records to measure: int64, ascending."""
    return spread(num_records, min(NUM_RECORDS, num_records))


@final
class StatisticsSampler:
    """Collects the statistics of a data set of ``num_records``, whose records come in order."""

    def __init__(self, fields: Mapping[str, Field], num_records: int) -> None:
        self.fields = {name: field for name, field in fields.items() if num_channels(field)}
        self._wanted = sample_indices(num_records)
        # For each record, in any order, the values, their mean, and the sum of their squared
        # distances from it: float64 [channels, 3].
        self.shares: dict[str, list[np.ndarray]] = {name: [] for name in self.fields}
        self._position = 0

    def pass_by(self, records: Records, count: int) -> None:
        """Measure those of the next ``count`` records that belong to the sample."""
        rows = self._wanted - self._position
        self._position += count
        self.measure(records, rows[(rows >= 0) & (rows < count)].tolist())

    def measure(self, records: Records, rows: Iterable[int]) -> None:
        for row in rows:
            for name, field in self.fields.items():
                with suppress(BadImage, BadFrames):  # the record is left out
                    self.shares[name].append(_share(records[name][row], field))

    def result(self) -> dict[str, ChannelStatistics]:
        """Return the statistics by field, without fields that could not be measured."""
        statistics: dict[str, ChannelStatistics] = {}
        for name, shares in self.shares.items():
            white = WHITE.get(self.fields[name].dtype, 1)
            if (combined := _combined(np.array(shares), white)) is not None:
                statistics[name] = combined
        return statistics


def statistics_of(store: RecordStore) -> dict[str, ChannelStatistics]:
    """Read and measure a sample of ``store``: the result is that of packing."""
    manifest = store.manifest
    key = manifest.digest, repr(manifest.fields)
    if manifest.digest and key in MEASURED:
        return MEASURED[key]
    sampler = StatisticsSampler(manifest.fields, manifest.num_records)

    def measure(part: Tensor) -> None:
        sampler.measure(store.read(part), range(len(part)))

    if sampler.fields:
        parts = sample_indices(manifest.num_records).split(READ_RECORDS)
        with ThreadPoolExecutor(num_cores(), "paceline-statistics") as pool:
            list(pool.map(measure, parts))
    result = sampler.result()
    if manifest.digest:
        MEASURED[key] = result
    return result


def _share(value: Any, field: Field) -> np.ndarray:
    """Return the share of a record's value; of a video, of its middle frame."""
    if field.kind == "video":
        frames = frames_of(value, field)
        return _share(frames[len(frames) // 2], field.frame)
    if field.encoding == "image":
        array = decode(value, field.channels or 3)
    else:
        array = value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if field.encoding == "image" or field.interleaved:
        array = np.moveaxis(array, 2, 0)
    shares = np.zeros((len(array), 3))
    for plane, share in zip(array, shares, strict=True):
        share[0] = plane.size
        # OpenCV sums bytes as integers, so that their order cannot matter.
        if plane.size and plane.dtype == np.uint8:
            means, deviations = cv2.meanStdDev(np.ascontiguousarray(plane))
            share[1:] = means.item(), deviations.item() ** 2 * plane.size
        elif plane.size:
            numbers = plane.astype(np.float64)
            mean = numbers.mean()
            share[1:] = mean, np.square(numbers - mean).sum()
    return shares


def _combined(shares: np.ndarray, white: int) -> ChannelStatistics | None:
    """Combine shares [records, channels, 3], in any order. None if a value is not finite.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm" (1979).
    """
    means: list[float] = []
    deviations: list[float] = []
    for counts, own_means, squares in shares.transpose(1, 2, 0) if len(shares) else ():
        count = counts.sum()
        if not count or not np.isfinite(squares).all():
            return None
        mean = math.fsum(counts * own_means) / count
        between = math.fsum(counts * (own_means - mean) ** 2)
        variance = (math.fsum(squares) + between) / count
        means.append(float(f"{mean / white:.{DIGITS}g}"))
        deviations.append(float(f"{math.sqrt(variance) / white:.{DIGITS}g}"))
    return ChannelStatistics(tuple(means), tuple(deviations)) if means else None
