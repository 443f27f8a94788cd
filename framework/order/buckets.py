"""``order=buckets``: batches of records with similar lengths, so that little of them is padding.

The records are sorted by length and cut once into buckets of whole batches, the longest first. Only
the last bucket may have a short batch. Each epoch shuffles the records inside each bucket, and all
batches, whose number stays. All ranks share each batch, so their records have similar lengths, too.
"""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from framework.errors import ConfigError
from framework.order.batches import Buckets, Order, RecordFacts


@final
@dataclass(frozen=True)
class BucketOrder:
    """Cuts batches of similar lengths."""

    field: str | None  # the ragged field whose rows count; None: the only one
    max_values: int | None  # the most rows of a batch over all ranks, padding included
    width: float  # how much shorter than a bucket's longest its shortest may be: a share below 1

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


def cut(lengths: Tensor, most: int, max_values: int | None, width: float, last: str) -> Buckets:
    """Cut records of these ``lengths`` (int64 [N]) into buckets. ``BucketOrder`` says how."""
    records = torch.argsort(lengths, descending=True, stable=True)
    falling = -lengths[records]
    starts = [0]
    sizes: list[int] = []
    first = [0]
    while starts[-1] < len(records):
        start = starts[-1]
        longest = max(1, -int(falling[start]))
        size = most
        if max_values is not None:
            size = max(1, min(most, max_values // longest))
        shortest = math.ceil(longest * (1 - width))
        stop = int(torch.searchsorted(falling, -shortest, right=True))
        if stop < len(records):  # whole batches, at least one of them
            stop = start + max(1, (stop - start) // size) * size
        stop = min(stop, len(records))
        count = stop - start
        starts.append(stop)
        sizes.append(size)
        first.append(first[-1] + -(-count // size))
    sizes_of = torch.tensor(sizes, dtype=torch.int64)  # also of no buckets
    return Buckets(records, torch.tensor(starts), sizes_of, torch.tensor(first), last)
