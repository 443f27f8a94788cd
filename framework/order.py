"""Which record comes when: pure functions of (seed, epoch, record), the same everywhere.

The generator is ours and counter based: splitmix64's finalizer over a counter. So nothing depends
on a library's random stream, nothing must be saved to resume, and a jump reaches any step.
Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from framework.system.native import find


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_WORD = (1 << 64) - 1

# streams of numbers: augments and transforms of a record must not draw the same ones
ON_DEVICE = 1
ON_HOST = 4


def permutation(num_records: int, seed: int, epoch: int) -> Tensor:
    """Return the order of an epoch: int64 [num_records], each record once, by its random key."""
    key = _key(seed, epoch, 0)
    compiled = find("paceline_permutation")
    order = torch.empty(num_records, dtype=torch.int64)
    if compiled is not None and compiled(num_records, key, order.data_ptr()) == 0:
        return order
    keys = _mix(torch.arange(num_records) * _GOLDEN + key)
    return torch.argsort(keys, stable=True)


def block_permutation(num_records: int, seed: int, epoch: int, block: int, window: int) -> Tensor:
    """Return an order that keeps neighbors close, for stores larger than memory.

    Blocks of ``block`` records, each read from one place of the disk, come in random order. Records
    are then shuffled inside each ``window`` of blocks.
    """
    starts = permutation(-(-num_records // block), seed, epoch) * block
    order = (starts.unsqueeze(1) + torch.arange(block)).flatten()
    order = order[order < num_records]
    by_key = torch.argsort(_mix(order * _GOLDEN + _key(seed, epoch, 3)), stable=True)
    return order[by_key[torch.argsort(by_key // (block * window), stable=True)]]


def draws(
    indices: Tensor, seed: int, epoch: int, num_draws: int, stream: int = ON_DEVICE
) -> Tensor:
    """Return uniform numbers in [0, 1): float32 [B, num_draws] on ``indices``'s device.

    A row depends on (seed, epoch, record index, stream) alone, not on batch, rank or device.
    """
    return keyed_draws(indices, _key(seed, epoch, stream), num_draws)


def keyed_draws(indices: Tensor, key: int | Tensor, num_draws: int) -> Tensor:
    """Return ``draws`` for the key of (seed, epoch, stream)."""
    counters = indices.unsqueeze(1) * num_draws + torch.arange(num_draws, device=indices.device)
    bits = _shift(_mix(counters * _GOLDEN + key), 40)  # the top 24 bits: exact in float32
    return bits.to(torch.float32) * 2.0**-24


def device_key(seed: int, epoch: int) -> Tensor:
    """Return the key of an epoch's draws on the device: int64 [] on the host.

    A kernel takes it as an argument. A plain number would be compiled into the kernel.
    """
    return torch.tensor(_key(seed, epoch, ON_DEVICE))


def record_seeds(indices: Tensor, seed: int, epoch: int) -> Tensor:
    """Return a seed per record for other generators: int64 [B], 0 or more."""
    return _shift(_mix((indices + 1) * _GOLDEN + _key(seed, epoch, 2)), 1)


def spread(num_records: int, count: int) -> Tensor:
    """Return ``count`` evenly spaced indices, ascending, with the first and the last record."""
    if count == num_records:
        return torch.arange(num_records)
    return torch.arange(count) * (num_records - 1) // max(1, count - 1)


class Share(NamedTuple):
    """One rank's part of one forward pass.

    Attributes:
        indices: The records: int64 [B].
        weight: The factor on the mean loss of these records. The gradient, summed over the passes
            and averaged over the ranks of a step, is then that of the mean over the global batch.
            The average is over virtual ranks if there are any. 0 marks a filler, which must change
            nothing.
        last: Whether the optimizer steps after it.
    """

    indices: Tensor
    weight: float
    last: bool


@dataclass(frozen=True)
class Order:
    """The order of a data set.

    Global batch b of an epoch is ``P[b*batch_size:(b+1)*batch_size]``. Ranks and accumulation cut
    it.

    Attributes:
        num_records: Records of the data set.
        batch_size: Records per optimizer step, over all ranks and accumulation.
        seed: The seed of the permutations.
        shuffle: Whether an epoch is permuted.
        accumulate: Forward passes per optimizer step.
        rank: This process's number.
        world_size: The number of ranks.
        limit: Use only so many records, evenly spaced, with the first and the last.
        block: Shuffle blocks of so many records, as ``block_permutation`` does.
        window: Blocks that are shuffled together.
        last: An epoch's last batch, if records are too few for it, stays ``short``, is left out
            (``drop``), or is filled with the epoch's first records again (``wrap``).
        virtual_ranks: Cut a batch as for so many ranks. Each rank gets a run of these shares.
    """

    num_records: int
    batch_size: int
    seed: int = 0
    shuffle: bool = False
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1
    limit: int | None = None
    block: int | None = None
    window: int = 1
    last: str = "short"
    virtual_ranks: int | None = None

    @property
    def num_used(self) -> int:
        """Records per epoch."""
        return self.num_records if self.limit is None else min(self.limit, self.num_records)

    @property
    def num_taken(self) -> int:
        """Records in an epoch's batches."""
        return self.num_used if self.last == "short" else self.num_steps * self.batch_size

    @property
    def num_steps(self) -> int:
        """Optimizer steps per epoch."""
        if self.last == "drop":
            return self.num_used // self.batch_size
        return -(-self.num_used // self.batch_size)

    @property
    def identity(self) -> dict[str, int]:
        """What decides which records are in global batch b; not how ranks and passes cut it."""
        identity = {
            "records": self.num_taken,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": int(self.shuffle),
        }
        if self.block is not None:
            identity |= {"block": self.block, "window": self.window}
        return identity

    def used(self) -> Tensor:
        """Return the record indices in use, ascending: int64 [num_used]."""
        return spread(self.num_records, self.num_used)

    def shares(self, epoch: int, start: int = 0) -> Iterator[Share]:
        """Yield this rank's shares of an epoch from step ``start`` on.

        Every rank gets equally many, so that collectives always meet.
        """
        if start >= self.num_steps:
            return
        order = self.used()
        if self.shuffle:
            order = order[self._permutation(epoch)]
        if self.num_taken != self.num_used:
            order = order[torch.arange(self.num_taken) % self.num_used]
        for batch in order[start * self.batch_size :].split(self.batch_size):
            if self.virtual_ranks is not None:
                yield from self._virtual_shares(batch, self.virtual_ranks)
            elif self.world_size == 1 and self.accumulate == 1:
                yield Share(batch, 1.0, True)  # the usual case, without the 10 us of cutting
            else:
                yield from self._rank_shares(batch)

    def _permutation(self, epoch: int) -> Tensor:
        if self.block is None:
            return permutation(self.num_used, self.seed, epoch)
        return block_permutation(self.num_used, self.seed, epoch, self.block, self.window)

    def _rank_shares(self, batch: Tensor) -> Iterator[Share]:
        """Cut a batch into passes, and each pass over the ranks.

        A pass then holds the same records on any number of ranks, and batch norm sees the same.
        """
        parts = batch.tensor_split(min(self.accumulate, len(batch)))
        for number, part in enumerate(parts):
            mine = part[self.rank :: self.world_size]
            weight = len(mine) * self.world_size / len(batch)
            last = number == len(parts) - 1
            yield Share(mine if len(mine) else _filler(part, self.rank), weight, last)

    def _virtual_shares(self, batch: Tensor, count: int) -> Iterator[Share]:
        """Yield this rank's run of ``count`` shares, cut as for ``count`` ranks."""
        first = self.rank * count // self.world_size
        stop = (self.rank + 1) * count // self.world_size
        for number in range(first, stop):
            part = batch[number::count]
            weight = len(part) * count / len(batch)
            last = number == stop - 1
            yield Share(part if len(part) else _filler(batch, number), weight, last)


def _filler(batch: Tensor, number: int) -> Tensor:
    """Return one record whose gradients count for nothing.

    Batch norm's statistics do see it. A choice by number sees no record much more than others.
    """
    return batch[number % len(batch)].reshape(1)


def _key(*numbers: int) -> int:
    """Mix plain integers, sixty times as fast as ``_mix`` does for tensors of one number."""
    key = 0
    for number in numbers:
        x = (key ^ (number & _WORD)) + _GOLDEN & _WORD
        x = (x ^ (x >> 30)) * (_MIX_1 & _WORD) & _WORD
        x = (x ^ (x >> 27)) * (_MIX_2 & _WORD) & _WORD
        key = x ^ (x >> 31)
    return _signed(key)


def _mix(x: Tensor) -> Tensor:
    """Return splitmix64's finalizer; int64 products wrap on CPU and CUDA alike."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift logically: int64's ``>>`` keeps the sign, which the mask removes."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
