"""Which record when: pure functions of (seed, epoch, record), the same on every machine, rank count, worker count and device.

The generator is ours and counter based (splitmix64's finalizer over a counter), so nothing depends on a library's random
stream, nothing has to be saved to resume, and any step of any epoch is reached by a jump.
Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014 (the mixing constants).
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
ON_DEVICE, ON_HOST = (
    1,
    4,
)  # streams of numbers: augments and transforms of a record must not draw the same ones


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & (
        (1 << (64 - bits)) - 1
    )  # int64's >> keeps the sign; the mask makes it logical


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1  # int64 products wrap, on CPU and CUDA alike
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _mix_int(x: int) -> int:
    x = (x ^ (x >> 30)) * (_MIX_1 & _WORD) & _WORD
    x = (x ^ (x >> 27)) * (_MIX_2 & _WORD) & _WORD
    return x ^ (x >> 31)


def _key(*numbers: int) -> int:
    """``_mix`` over plain integers: sixty times as fast as over tensors of one number."""
    key = 0
    for number in numbers:
        key = _mix_int((key ^ (number & _WORD)) + _GOLDEN & _WORD)
    return _signed(key)


def permutation(num_records: int, seed: int, epoch: int) -> Tensor:
    """The order of one epoch: int64 [num_records], each of 0..num_records-1 once: by their random keys."""
    key, compiled = _key(seed, epoch, 0), find("paceline_permutation")
    found = torch.empty(num_records, dtype=torch.int64)
    if compiled is not None and compiled(num_records, key, found.data_ptr()) == 0:
        return found
    keys = _mix(torch.arange(num_records) * _GOLDEN + key)
    return torch.argsort(keys, stable=True)


def block_permutation(num_records: int, seed: int, epoch: int, block: int, window: int) -> Tensor:
    """Like ``permutation``, but neighbors stay near: blocks of ``block`` records in random order, then shuffled inside each
    ``window`` of blocks. For stores larger than memory: ``block`` records are read from one place of the disk.
    """
    starts = permutation(-(-num_records // block), seed, epoch) * block
    order = (starts.unsqueeze(1) + torch.arange(block)).flatten()
    order = order[order < num_records]
    by_key = torch.argsort(_mix(order * _GOLDEN + _key(seed, epoch, 3)), stable=True)
    return order[by_key[torch.argsort(by_key // (block * window), stable=True)]]


def draws(
    indices: Tensor, seed: int, epoch: int, num_draws: int, stream: int = ON_DEVICE
) -> Tensor:
    """Uniform numbers in [0, 1): float32 [B, num_draws], one row per record, on ``indices``'s device.

    A row depends on (seed, epoch, record index, stream) alone: not on the batch it comes in, the rank, or the device.
    """
    return keyed_draws(indices, _key(seed, epoch, stream), num_draws)


def keyed_draws(indices: Tensor, key: int | Tensor, num_draws: int) -> Tensor:
    """``draws``, by the key of its other numbers."""
    counters = indices.unsqueeze(1) * num_draws + torch.arange(num_draws, device=indices.device)
    bits = _shift(_mix(counters * _GOLDEN + key), 40)  # the top 24 bits: exact in float32
    return bits.to(torch.float32) * 2.0**-24


def device_key(seed: int, epoch: int) -> Tensor:
    """The key of an epoch's draws on the device: int64 [] on the host, which goes to a kernel as a number does; a plain one would be compiled into it."""
    return torch.tensor(_key(seed, epoch, ON_DEVICE))


def record_seeds(indices: Tensor, seed: int, epoch: int) -> Tensor:
    """A seed per record for generators that are not ours: int64 [B], 0 or more; of (seed, epoch, record index) alone."""
    return _shift(_mix((indices + 1) * _GOLDEN + _key(seed, epoch, 2)), 1)


class Share(NamedTuple):
    """One rank's part of one forward pass.

    ``weight``: the factor on the mean loss of these records so that, summed over the passes and averaged over the ranks of a
    step, the gradient is that of the mean over the whole global batch (of virtual ranks: averaged over these). 0 marks a filler that must change nothing.
    ``last``: the optimizer steps after it.
    """

    indices: Tensor
    weight: float
    last: bool


@dataclass(frozen=True)
class Order:
    """The order of a data set. Global batch b of an epoch is ``P[b*batch_size:(b+1)*batch_size]``; ranks and accumulation cut it.

    ``batch_size``: records per optimizer step over all ranks and accumulation. ``last``: what becomes of an epoch's last batch where records
    are too few for it: ``short`` as it is, ``drop`` left out, ``wrap`` filled with the epoch's first records, which come twice then.
    ``limit``: use that many records only, evenly spaced over the data set, first and last included. ``block``, ``window``: shuffle as
    ``block_permutation`` does. ``virtual_ranks``: cut a batch as for so many ranks, and give each rank the shares of a run of them.
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
        """Records that an epoch's batches hold."""
        return self.num_used if self.last == "short" else self.num_steps * self.batch_size

    @property
    def num_steps(self) -> int:
        """Optimizer steps per epoch."""
        return (
            self.num_used // self.batch_size
            if self.last == "drop"
            else -(-self.num_used // self.batch_size)
        )

    @property
    def identity(self) -> dict[str, int]:
        """What decides which records are in global batch b; not how ranks and passes cut it."""
        found = {
            "records": self.num_taken,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": int(self.shuffle),
        }
        return (
            found if self.block is None else {**found, "block": self.block, "window": self.window}
        )

    def used(self) -> Tensor:
        """The record indices in use, ascending: int64 [num_used]."""
        return spread(self.num_records, self.num_used)

    def shares(self, epoch: int, start: int = 0) -> Iterator[Share]:
        """This rank's shares of steps ``start``.. of an epoch; every rank gets equally many, so collectives always meet."""
        if start >= self.num_steps:
            return
        used = self.used()
        order = used[self._permutation(epoch)] if self.shuffle else used
        if self.num_taken != self.num_used:
            order = order[torch.arange(self.num_taken) % self.num_used]
        for batch in order[start * self.batch_size :].split(self.batch_size):
            if self.virtual_ranks is not None:
                yield from self._parts(batch, self.virtual_ranks)
            elif (
                self.world_size == 1 and self.accumulate == 1
            ):  # the usual case, without the 10 us of cutting
                yield Share(batch, 1.0, True)
            else:
                yield from self._cut(batch)

    def _permutation(self, epoch: int) -> Tensor:
        if self.block is None:
            return permutation(self.num_used, self.seed, epoch)
        return block_permutation(self.num_used, self.seed, epoch, self.block, self.window)

    def _cut(self, batch: Tensor) -> Iterator[Share]:
        """Into passes first, then over ranks: a pass holds the same records on any number of ranks, and batch norm sees the same."""
        parts = batch.tensor_split(min(self.accumulate, len(batch)))
        for number, part in enumerate(parts):
            mine = part[self.rank :: self.world_size]
            weight = len(mine) * self.world_size / len(batch)
            yield Share(
                mine if len(mine) else _filler(part, self.rank),
                weight,
                last=number == len(parts) - 1,
            )

    def _parts(self, batch: Tensor, count: int) -> Iterator[Share]:
        """This rank's of ``count`` parts, each as a rank of ``count`` would get it."""
        mine = range(
            self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size
        )
        for number in mine:
            part = batch[number::count]
            yield Share(
                part if len(part) else _filler(batch, number),
                len(part) * count / len(batch),
                last=number == mine[-1],
            )


def _filler(batch: Tensor, number: int) -> Tensor:
    """Its gradients count for nothing; batch norm's statistics, which see it, see none of the records much more than the others."""
    return batch[number % len(batch)].reshape(1)


def spread(num_records: int, count: int) -> Tensor:
    """``count`` of ``num_records`` indices, evenly spaced, ascending, first and last included: int64 [count]."""
    if count == num_records:
        return torch.arange(num_records)
    return torch.arange(count) * (num_records - 1) // max(1, count - 1)
