"""Mean and standard deviation per channel of a data set, from decoded values.

The sample is the same for every store: up to ``NUM_RECORDS`` records, spread evenly over the data
set. Every value in it has the same weight.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, final

import cv2
import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import ChannelStatistics, Field, Records, RecordStore
from framework.measure.host import num_cores
from framework.media.decode import decode
from framework.media.header import BadImage
from framework.media.video_file import BadFrames, frames_of
from framework.order.batches import spread

NUM_RECORDS = 1000
WHITE = {"uint8": 255, "uint16": 65535}  # normalizing divides by it; that of floats is 1
READ_RECORDS = 16  # at once, so that large images do not fill the memory
DIGITS = 6  # significant digits that do not depend on the layout or order of the values


def num_channels(field: Field) -> int | None:
    """Return the number of channels of a field that has statistics, or None.

    Images and videos have statistics, and raw fields [C, H, W] of floats, uint8 or uint16. Label
    maps, labels, indices and signals have none.
    """
    if field.kind == "labels":
        return None
    if field.kind == "video":
        return field.shape[3]
    if field.channels is not None:
        return field.channels
    measurable = np.dtype(field.dtype).kind == "f" or field.dtype in ("uint8", "uint16")
    if field.encoding != "raw" or len(field.shape) != 3 or not measurable:
        return None
    return field.shape[0]


def sample_indices(num_records: int) -> Tensor:
    """Return the records to measure: int64, ascending."""
    return spread(num_records, min(NUM_RECORDS, num_records))


class _Share(NamedTuple):
    """What one record adds to a channel."""

    num_values: int
    mean: float
    squares: float  # the sum of the squared distances from the mean


@final
class StatisticsSampler:
    """Collects the statistics of a data set of ``num_records`` that pass by in order."""

    def __init__(self, fields: Mapping[str, Field], num_records: int) -> None:
        self._fields = {name: field for name, field in fields.items() if num_channels(field)}
        self._wanted = sample_indices(num_records)
        self._shares: dict[str, list[list[_Share]]] = {name: [] for name in self._fields}
        self._position = 0

    def pass_by(self, records: Records, count: int) -> None:
        """Measure those of the next ``count`` records that belong to the sample."""
        start = self._position
        self._position += count
        edges = torch.tensor([start, self._position])
        first, past = torch.searchsorted(self._wanted, edges).tolist()
        for row in (self._wanted[first:past] - start).tolist():
            self.add({name: records[name][row] for name in self._fields})

    def add(self, record: Mapping[str, Any]) -> None:
        """Measure a record of decoded values or image bytes. An unreadable image is left out."""
        self._keep(self._measured(record))

    def add_in_threads(self, parts: Iterable[Callable[[], Records]]) -> None:
        """Read and measure parts of the sample, in order, with a thread for each core."""

        def measured(read: Callable[[], Records]) -> list[dict[str, list[_Share]]]:
            records = read()
            count = max((len(records[name]) for name in self._fields), default=0)
            rows = ({name: records[name][row] for name in self._fields} for row in range(count))
            return list(map(self._measured, rows))

        with ThreadPoolExecutor(num_cores(), "paceline-statistics") as pool:
            try:
                for part in pool.map(measured, parts):
                    for shares in part:
                        self._keep(shares)
            finally:
                pool.shutdown(cancel_futures=True)

    def _measured(self, record: Mapping[str, Any]) -> dict[str, list[_Share]]:
        measured: dict[str, list[_Share]] = {}
        for name, field in self._fields.items():
            with suppress(BadImage, BadFrames):
                measured[name] = _shares(record[name], field)
        return measured

    def _keep(self, measured: Mapping[str, list[_Share]]) -> None:
        for name, shares in measured.items():
            self._shares[name].append(shares)

    def result(self) -> dict[str, ChannelStatistics]:
        """Return the statistics by field, without fields that could not be measured."""
        combined = {
            name: _combined(shares, self._fields[name]) for name, shares in self._shares.items()
        }
        return {name: block for name, block in combined.items() if block is not None}


_remembered: ContextVar[dict[tuple[str, int], dict[str, ChannelStatistics]] | None] = ContextVar(
    "remembered", default=None
)


@contextmanager
def remembered_statistics() -> Generator[None]:
    """Measure a store only once inside the block, which opens it again and again."""
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


def statistics_of(store: RecordStore) -> dict[str, ChannelStatistics]:
    """Read and measure a sample of ``store``: the result is that of packing."""
    known, manifest = _remembered.get(), store.manifest
    key = manifest.source, manifest.num_records
    if known is not None and manifest.source and key in known:
        return known[key]
    sampler = StatisticsSampler(manifest.fields, manifest.num_records)
    if any(num_channels(field) for field in manifest.fields.values()):
        parts = sample_indices(manifest.num_records).split(READ_RECORDS)
        sampler.add_in_threads(partial(store.read, indices) for indices in parts)
    result = sampler.result()
    if known is not None and manifest.source:
        known[key] = result
    return result


def of_batch(images: Tensor) -> ChannelStatistics | None:
    """Return the statistics of a batch [B, C, H, W]; None if its values have none."""
    field = Field(str(images.dtype).removeprefix("torch."), tuple(images.shape[1:]))
    sampler = StatisticsSampler({"images": field}, len(images))
    sampler.pass_by({"images": images}, len(images))
    return sampler.result().get("images")


def _shares(value: Any, field: Field) -> list[_Share]:
    """Return one share per channel of a record's value; of a video, of its middle frame."""
    if field.kind == "video":
        frames = frames_of(value, field)
        return _shares(frames[len(frames) // 2], field.frame)
    if field.encoding == "image":
        array = decode(value, field.channels or 3)
    elif isinstance(value, Tensor):
        array = value.cpu().numpy()
    else:
        array = np.asarray(value)
    if field.encoding == "image" or field.interleaved:
        array = np.moveaxis(array, 2, 0)
    shares: list[_Share] = []
    for plane in array:
        mean = squares = 0.0
        # OpenCV sums bytes as integers, so that their order cannot matter.
        if plane.size and plane.dtype == np.uint8:
            means, deviations = cv2.meanStdDev(np.ascontiguousarray(plane))
            mean, squares = float(means[0, 0]), float(deviations[0, 0]) ** 2 * plane.size
        elif plane.size:
            values = plane.astype(np.float64)
            mean = float(values.mean())
            squares = float(np.square(values - mean).sum())
        shares.append(_Share(plane.size, mean, squares))
    return shares


def _combined(records: Sequence[Sequence[_Share]], field: Field) -> ChannelStatistics | None:
    """Combine shares, in any order, to mean and deviation. None if a value is not finite.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances" (1979).
    """
    white = WHITE.get(field.dtype, 1)
    means: list[float] = []
    deviations: list[float] = []
    for shares in zip(*records, strict=True):
        count = sum(share.num_values for share in shares)
        if not count or not all(math.isfinite(share.squares) for share in shares):
            return None
        mean = math.fsum(share.num_values * share.mean for share in shares) / count
        between = math.fsum(share.num_values * (share.mean - mean) ** 2 for share in shares)
        variance = (math.fsum(share.squares for share in shares) + between) / count
        means.append(_rounded(mean / white))
        deviations.append(_rounded(math.sqrt(variance) / white))
    return ChannelStatistics(tuple(means), tuple(deviations)) if means else None


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
