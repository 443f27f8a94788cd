"""The order of records and their random numbers: pure functions of (seed, epoch, record).

The generator is splitmix64's finalizer over a counter, so every machine and library version gives
the same numbers. A resumed run can compute any step directly and needs no saved generator.
Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from framework.system.native import find


def _signed(word: int) -> int:
    """Return the int64 number with the same 64 bits as ``word``, which is unsigned."""
    if word >= 1 << 63:
        return word - (1 << 64)
    return word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_WORD = (1 << 64) - 1
_BELOW_ONE = 1 - 2.0**-24  # the largest draw

# Streams of random numbers: each use draws from its own, so that no two uses are correlated.
_ORDER = 0  # of the records of an epoch
ON_DEVICE = 1  # augments
_OTHER_GENERATORS = 2  # ``record_seeds``
_IN_WINDOW = 3  # the second shuffle of ``block_permutation``
ON_HOST = 4  # transforms


def permutation(num_records: int, seed: int, epoch: int) -> Tensor:
    """Return every record once, in random order: int64 [num_records]."""
    key = _key(seed, epoch, _ORDER)
    compiled = find("paceline_permutation")
    order = torch.empty(num_records, dtype=torch.int64)
    if compiled is not None and compiled(num_records, key, order.data_ptr()) == 0:
        return order
    keys = _mix(torch.arange(num_records) * _GOLDEN + key)
    return torch.argsort(keys, stable=True)


def block_permutation(num_records: int, seed: int, epoch: int, block: int, window: int) -> Tensor:
    """Return a random order that reads neighboring records together: int64 [num_records].

    This suits stores that are larger than memory. Blocks of ``block`` neighboring records are
    shuffled first. Then the records inside each run of ``window`` blocks are shuffled.
    """
    starts = permutation(-(-num_records // block), seed, epoch) * block
    order = (starts.unsqueeze(1) + torch.arange(block)).flatten()
    order = order[order < num_records]
    keys = _mix(order * _GOLDEN + _key(seed, epoch, _IN_WINDOW))
    by_key = torch.argsort(keys, stable=True)
    return order[by_key[torch.argsort(by_key // (block * window), stable=True)]]


def draws(
    indices: Tensor, seed: int, epoch: int, num_draws: int, stream: int = ON_DEVICE
) -> Tensor:
    """Return uniform random numbers in [0, 1): float32 [B, num_draws], one row per record.

    A row depends only on (seed, epoch, record index, stream, num_draws), not on the batch, rank or
    device. The result is on the device of ``indices``.
    """
    return keyed_draws(indices, _key(seed, epoch, stream), num_draws)


def keyed_draws(indices: Tensor, key: int | Tensor, num_draws: int) -> Tensor:
    """Return what ``draws`` returns, given ``key``, which combines (seed, epoch, stream)."""
    counters = indices.unsqueeze(1) * num_draws + torch.arange(num_draws, device=indices.device)
    bits = _shift(_mix(counters * _GOLDEN + key), 40)  # the top 24 bits: exact in float32
    return bits.to(torch.float32) * 2.0**-24


@dataclass(frozen=True)
class DeviceDraws:
    """The random numbers of an augment: float32 [B, num_draws] in [0, 1) for each batch.

    Attributes:
        seed: The run's seed.
        num_draws: Numbers per record.
        alternating: Columns that hold epoch 0's numbers d in even epochs, and 1 - 2**-24 - d in odd
            ones. These are all numbers that a draw can be, in reverse order.
    """

    seed: int
    num_draws: int
    alternating: tuple[int, ...] = ()

    def keys(self, epoch: int) -> tuple[Tensor, ...]:
        """Return what decides the numbers of an epoch: tensors without dimensions, on the host.

        A compiled kernel takes a tensor as an argument, but would contain a plain number as a
        constant.
        """
        key = device_key(self.seed, epoch)
        if not self.alternating:
            return (key,)
        return key, torch.tensor((epoch % 2) * _BELOW_ONE)

    def of(self, indices: Tensor, key: Tensor, mirror: Tensor | None = None) -> Tensor:
        """Return the numbers of the records at ``indices``, given the ``keys`` of an epoch."""
        result = keyed_draws(indices, key, self.num_draws)
        if mirror is None:
            return result
        first = keyed_draws(indices, _key(self.seed, 0, ON_DEVICE), self.num_draws)
        first = (mirror - first).abs()  # exact: all are multiples of 2**-24
        for column in self.alternating:
            result[:, column] = first[:, column]
        return result


def device_key(seed: int, epoch: int) -> Tensor:
    """Return the ``keyed_draws`` key for an epoch's augments: int64 [], in host memory.

    A compiled kernel takes a tensor as an argument, but would contain a plain number as a constant.
    """
    return torch.tensor(_key(seed, epoch, ON_DEVICE))


def record_seeds(indices: Tensor, seed: int, epoch: int) -> Tensor:
    """Return one seed per record for generators of other libraries: int64 [B], 0 or more."""
    key = _key(seed, epoch, _OTHER_GENERATORS)
    return _shift(_mix((indices + 1) * _GOLDEN + key), 1)


def spread(num_records: int, count: int) -> Tensor:
    """Return ``count`` evenly spaced record indices, ascending: int64 [count].

    They include the first and the last record if ``count`` is at least 2.
    """
    if count == num_records:
        return torch.arange(num_records)
    return torch.arange(count) * (num_records - 1) // max(1, count - 1)


class Share(NamedTuple):
    """The records of one forward pass on one rank.

    Attributes:
        indices: The records: int64 [B].
        weight: The factor on the mean loss of ``indices``. Gradients are summed over the passes of
            a step and averaged over (virtual) ranks. With this factor, the result is the gradient
            of the mean loss over the global batch. 0 marks a filler without influence on it.
        last: Whether this is the last pass before the optimizer steps.
    """

    indices: Tensor
    weight: float
    last: bool


@dataclass(frozen=True)
class Order:
    """The order in which a data set's records are used, and how they are cut into batches.

    If P is the order of an epoch, global batch b is ``P[b*batch_size:(b+1)*batch_size]``. A global
    batch is cut into forward passes, and each pass into one share per rank.

    Attributes:
        num_records: Records of the data set.
        batch_size: Records per optimizer step, over all ranks and accumulation.
        seed: The seed of the permutations.
        shuffle: Whether each epoch has its own random order.
        accumulate: Forward passes per optimizer step.
        rank: The rank of this process.
        world_size: The number of ranks.
        limit: The number of evenly spaced records to use, or None for all.
        block: Records per block of ``block_permutation``, or None to shuffle single records.
        window: Neighboring blocks whose records are shuffled together.
        last: What to do with an incomplete last batch: keep it (``short``), leave it out
            (``drop``), or fill it with the first records of the epoch (``wrap``).
        virtual_ranks: Cut each batch into this many shares, on any number of ranks. None: cut it
            into one share per rank and pass.
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
        """The number of records in use: all, or ``limit``."""
        if self.limit is None:
            return self.num_records
        return min(self.limit, self.num_records)

    @property
    def num_in_batches(self) -> int:
        """The number of records in all batches of an epoch, repeated ones included."""
        return self.num_used if self.last == "short" else self.num_steps * self.batch_size

    @property
    def num_steps(self) -> int:
        """Optimizer steps per epoch."""
        if self.last == "drop":
            return self.num_used // self.batch_size
        return -(-self.num_used // self.batch_size)

    @property
    def identity(self) -> dict[str, int]:
        """The settings that decide which records are in each global batch.

        How ranks and passes cut a batch is not included.
        """
        identity = {
            "records": self.num_in_batches,
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
        """Yield this rank's shares of an epoch, beginning with step ``start``.

        All ranks get the same number of shares, so that they always communicate at the same time.
        """
        if start >= self.num_steps:
            return
        order = self.used()
        if self.shuffle:
            order = order[self._permutation(epoch)]
        if self.num_in_batches != self.num_used:
            order = order[torch.arange(self.num_in_batches) % self.num_used]
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
        """Yield this rank's share of each pass of a batch.

        The batch is cut into passes first. So the records of a pass, and with them the statistics
        of synchronized batch norm, do not depend on the number of ranks.
        """
        parts = batch.tensor_split(min(self.accumulate, len(batch)))
        for number, part in enumerate(parts):
            mine = part[self.rank :: self.world_size]
            weight = len(mine) * self.world_size / len(batch)
            last = number == len(parts) - 1
            yield Share(mine if len(mine) else _filler(part, self.rank), weight, last)

    def _virtual_shares(self, batch: Tensor, count: int) -> Iterator[Share]:
        """Cut a batch into ``count`` shares, and yield this rank's, which are consecutive."""
        first = self.rank * count // self.world_size
        stop = (self.rank + 1) * count // self.world_size
        for number in range(first, stop):
            part = batch[number::count]
            weight = len(part) * count / len(batch)
            last = number == stop - 1
            yield Share(part if len(part) else _filler(batch, number), weight, last)


def _filler(batch: Tensor, number: int) -> Tensor:
    """Return one record for a share that would be empty. Its gradients have the weight 0.

    The statistics of batch norm include the record. Ranks pass different numbers and so get
    different records, because the statistics should not prefer one.
    """
    return batch[number % len(batch)].reshape(1)


def _key(*numbers: int) -> int:
    """Combine integers into one key. This is 60 times as fast as ``_mix`` with small tensors."""
    key = 0
    for number in numbers:
        x = (key ^ (number & _WORD)) + _GOLDEN & _WORD
        x = (x ^ (x >> 30)) * (_MIX_1 & _WORD) & _WORD
        x = (x ^ (x >> 27)) * (_MIX_2 & _WORD) & _WORD
        key = x ^ (x >> 31)
    return _signed(key)


def _mix(x: Tensor) -> Tensor:
    """Apply splitmix64's finalizer. Products of int64 wrap in the same way on CPU and CUDA."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros. ``>>`` fills with the sign bit, which the mask removes."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
