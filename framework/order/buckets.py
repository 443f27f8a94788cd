"""``order=buckets``: batches of records with similar lengths, so that little of them is padding.

The records are sorted by length and cut once into buckets, from the longest to the shortest. A
bucket holds whole batches, so only the last bucket may have a short one. Each epoch shuffles the
records inside each bucket, and the batches of all buckets. So the number of batches is always the
same, and a batch is a pure function of (seed, epoch, step). All ranks share each batch, so their
records have similar lengths, too.
"""

import math
from dataclasses import dataclass, replace
from typing import final
from zlib import crc32

import torch
from torch import Tensor

from framework.errors import ConfigError
from framework.order.batches import Order, RecordFacts, SmallestBatches
from framework.order.draws import IN_BUCKET, key_of
from framework.order.permutation import bijection, shuffled


@final
class BucketOrder:
    """Cuts batches of similar lengths.

    Args:
        field: The ragged field whose rows count; None: the only one.
        max_values: The most rows of a batch over all ranks, padding included; None: no limit. The
            number of records is at most the order's ``batch_size``.
        width: How much shorter than its longest record a bucket's shortest may be: a share below 1.
            About half of it becomes padding.
    """

    def __init__(self, field: str | None, max_values: int | None, width: float) -> None:
        self.field = field
        self.max_values = max_values
        self.width = width

    def order(self, order: Order, facts: RecordFacts, training: bool) -> Order:
        """Return ``order`` with batches of similar lengths, in training and validation.

        ConfigError C200 if there is no such field, C201 for a record longer than ``max_values``.
        """
        used = order.used()
        lengths = facts.lengths(self.field)[used]
        longest = int(lengths.argmax()) if len(lengths) else 0
        if self.max_values is not None and len(lengths) and lengths[longest] > self.max_values:
            what = f"record {int(used[longest])} alone has {int(lengths[longest])}"
            fix = f"set order.max_values={int(lengths[longest])} or more"
            raise ConfigError(201, f"order.max_values = {self.max_values}", what, fix)
        size = order.batch_size
        return replace(order, cuts=cut(lengths, size, self.max_values, self.width, order.last))


@final
@dataclass(frozen=True)
class Buckets:
    """The buckets of a data set."""

    records: Tensor  # places among the records in use, the longest first: int64 [num_used]
    starts: Tensor  # where each bucket begins in ``records``, and the end: int64 [num_buckets + 1]
    sizes: Tensor  # records per batch of each bucket: int64 [num_buckets]
    first: Tensor  # the number of each bucket's first batch, and of all: int64 [num_buckets + 1]
    last: str  # what becomes of the short batch of the last bucket, as in ``Order``

    @property
    def num_short(self) -> int:
        """The number of records in the short batch; 0 if there is none."""
        if not len(self.sizes):
            return 0
        return int((self.starts[-1] - self.starts[-2]) % self.sizes[-1])

    @property
    def num_steps(self) -> int:
        return int(self.first[-1]) - (self.num_short > 0 and self.last == "drop")

    @property
    def num_in_batches(self) -> int:
        short = self.num_short
        if not short or self.last == "short":
            return len(self.records)
        more = int(self.sizes[-1]) if self.last == "wrap" else 0
        return len(self.records) - short + more

    @property
    def smallest_batches(self) -> SmallestBatches:
        is_whole = self.starts.diff() >= self.sizes
        if self.last == "wrap":
            is_whole[:] = True
        whole = int(self.sizes[is_whole].min()) if is_whole.any() else 0
        return SmallestBatches(whole, self.num_short if self.last == "short" else 0)

    @property
    def identity(self) -> dict[str, int]:
        content = 0
        for part in (self.records, self.starts, self.sizes):
            content = crc32(part.numpy().tobytes(), content)
        return {"steps": self.num_steps, "buckets": content}

    def batch(self, step: int, seed: int, epoch: int, shuffle: bool) -> Tensor:
        """Return the places of a batch among the records in use: int64 [B].

        Without ``shuffle``, batches come from the longest to the shortest.
        """
        number = step
        if shuffle:
            number = int(shuffled(self.num_steps, seed, epoch, step, step + 1))
        bucket = int(torch.searchsorted(self.first, number, right=True)) - 1
        start, stop = self.starts[bucket : bucket + 2].tolist()
        size = int(self.sizes[bucket])
        count = stop - start
        place = (number - int(self.first[bucket])) * size
        places = torch.arange(place, min(place + size, count))
        if self.last == "wrap":
            places = torch.arange(place, place + size) % count
        if shuffle:
            key = key_of(seed, epoch, IN_BUCKET, bucket)
            stop = min(place + size, count)
            mapped = bijection(count, key, place, stop)
            if stop - place < len(places):
                rest = places[stop - place :]
                mapped = torch.cat([mapped, bijection(count, key, 0, count)[rest]])
            places = mapped
        return self.records[start + places]


def cut(
    lengths: Tensor, batch_size: int, max_values: int | None, width: float, last: str
) -> Buckets:
    """Cut records of these ``lengths`` (int64 [N]) into buckets. ``BucketOrder`` says how."""
    records = torch.argsort(lengths, descending=True, stable=True)
    falling = -lengths[records]
    starts = [0]
    sizes: list[int] = []
    first = [0]
    while starts[-1] < len(records):
        start = starts[-1]
        longest = max(1, -int(falling[start]))
        size = batch_size
        if max_values is not None:
            size = max(1, min(batch_size, max_values // longest))
        shortest = math.ceil(longest * (1 - width))
        stop = int(torch.searchsorted(falling, -shortest, right=True))
        if stop < len(records):  # whole batches, at least one of them
            stop = start + max(1, (stop - start) // size) * size
        stop = min(stop, len(records))
        count = stop - start
        starts.append(stop)
        sizes.append(size)
        first.append(first[-1] + -(-count // size))
    return Buckets(records, torch.tensor(starts), _numbers(sizes), torch.tensor(first), last)


def _numbers(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)  # also of no numbers
