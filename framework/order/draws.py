"""Random numbers, orders and samples of records: pure functions of (seed, epoch, record or place).

The generator is splitmix64's finalizer over a counter, so every machine and library version gives
the same numbers. Any part of an order is computed alone, so an epoch begins at once, however many
records it has. A resumed run jumps to its place, and needs no saved generator.
Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from math import isqrt
from typing import final
from zlib import crc32

import torch
from torch import Tensor
from torch.compiler import is_compiling

from framework.system.native import CheckedKernel, find


def _signed(word: int) -> int:
    """Return the int64 number with the same 64 bits as ``word``, which is unsigned."""
    return word - (word >> 63 << 64)


GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_WORD = (1 << 64) - 1
_BELOW_ONE = 1 - 2.0**-24  # the largest draw

# So many records are sorted by random keys, in 2 ms, which makes every order equally probable.
MOST_SORTED = 1 << 16
# Of ``paceline_bijection``. With 6, the 24 orders of four numbers are not equally frequent.
NUM_ROUNDS = 8
# In torch, a number takes so many times as long as in C.
WORTH_MAPPING = 32
_LOW = 0xFFFFFFFF
ROUNDING = 1e-6  # how much a sum of weights may be too small
_BITS = 53  # of a double's mantissa

# Streams of random numbers: each use draws from its own, so that no two uses are correlated.
OF_ORDER = 0  # the records of an epoch
ON_DEVICE = 1  # augments
_OTHER_GENERATORS = 2  # ``record_seeds``
IN_WINDOW = 3  # the second shuffle of ``shuffled_in_blocks``
ON_HOST = 4  # transforms
IN_BUCKET = 5  # the records of a bucket
IN_GROUP = 6  # the records of a group of equal weights
SHIFT = 7  # of systematic sampling
OF_OBJECTIVE = 1 << 8  # and so on: noise for an objective's own use


def draws(
    indices: Tensor, seed: int, epoch: int, num_draws: int, stream: int = ON_DEVICE
) -> Tensor:
    """Return uniform random numbers in [0, 1): float32 [B, num_draws], one row per record.

    A row depends only on (seed, epoch, record index, stream, num_draws), not on the batch, rank or
    device. The result is on the device of ``indices``.
    """
    key = key_of(seed, epoch, stream)
    compiled = find("paceline_draws")
    if compiled is None or not indices.is_cpu:
        return keyed_draws(indices, key, num_draws)
    indices = indices.contiguous()
    out = torch.empty((len(indices), num_draws), dtype=torch.float32)
    compiled(indices.data_ptr(), len(indices), num_draws, key, out.data_ptr())
    return out


def keyed_draws(indices: Tensor, key: int | Tensor, num_draws: int) -> Tensor:
    """Return what ``draws`` returns, given ``key``, which combines (seed, epoch, stream)."""
    counters = indices.unsqueeze(1) * num_draws + torch.arange(num_draws, device=indices.device)
    bits = _shift(mix(counters * GOLDEN + key), 40)  # the top 24 bits: exact in float32
    return bits.to(torch.float32) * 2.0**-24


draw_kernel = CheckedKernel()
MOST_DRAWS = 31  # per record; the kernel keeps the alternating ones in the bits of an int32


@dataclass(frozen=True)
class DeviceDraws:
    """The random numbers of an augment: float32 [B, num_draws] in [0, 1) for each batch."""

    seed: int  # of the run
    num_draws: int  # per record
    # Columns that hold epoch 0's numbers d in even epochs, and 1 - 2**-24 - d in odd ones. These
    # are all numbers that a draw can be, in reverse order.
    alternating: tuple[int, ...] = ()
    # Epoch 0's key, for ``alternating``: torch's compiler warns where it meets a cached function.
    first_key: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_key", key_of(self.seed, 0, ON_DEVICE))

    def keys(self, epoch: int) -> tuple[Tensor, ...]:
        """Return what decides the numbers of an epoch: tensors without dimensions, on the host."""
        # A compiled kernel takes a tensor as an argument, but would contain a plain number as a
        # constant.
        key = torch.tensor(key_of(self.seed, epoch, ON_DEVICE))
        if not self.alternating:
            return (key,)
        return key, torch.tensor((epoch % 2) * _BELOW_ONE)

    def of(self, indices: Tensor, key: Tensor, mirror: Tensor | None = None) -> Tensor:
        """Return the numbers of the records at ``indices``, given the ``keys`` of an epoch.

        On a GPU a kernel makes them, if it can be compiled: the operators would launch up to 50.
        """
        on_gpu = indices.device.type == "cuda" and self.num_draws <= MOST_DRAWS
        # torch's compiler makes one kernel of the operators
        if on_gpu and not is_compiling():
            made = draw_kernel(
                (self.num_draws, self.alternating),
                lambda: self._launched(indices, key, mirror),
                lambda: self.by_operators(indices, key, mirror),
            )
            if made is not None:
                return made
        return self.by_operators(indices, key, mirror)

    def _launched(self, indices: Tensor, key: Tensor, mirror: Tensor | None) -> Tensor:
        from framework.order.draw_kernel import launch  # noqa: PLC0415  # only with Triton

        shape = (len(indices), self.num_draws)
        out = torch.empty(shape, dtype=torch.float32, device=indices.device)
        # the keys lie on the host: reading them waits for nothing
        is_mirrored = mirror is not None and bool(mirror)
        launch(indices.contiguous(), int(key), self.first_key, self.alternating, is_mirrored, out)
        return out

    def by_operators(self, indices: Tensor, key: Tensor, mirror: Tensor | None = None) -> Tensor:
        """Return what ``of`` returns, by torch's operators."""
        result = keyed_draws(indices, key, self.num_draws)
        if mirror is None:
            return result
        first = keyed_draws(indices, self.first_key, self.num_draws)
        first = (mirror - first).abs()  # exact: all are multiples of 2**-24
        for column in self.alternating:
            result[:, column] = first[:, column]
        return result


def record_seeds(indices: Tensor, seed: int, epoch: int) -> Tensor:
    """Return one seed per record for generators of other libraries: int64 [B], 0 or more."""
    return _shift(mix((indices + 1) * GOLDEN + key_of(seed, epoch, _OTHER_GENERATORS)), 1)


@lru_cache(maxsize=64)
def key_of(*numbers: int) -> int:
    """Combine integers into one key. This is 60 times as fast as ``mix`` with small tensors."""
    key = 0
    for number in numbers:
        x = (key ^ (number & _WORD)) + GOLDEN & _WORD
        x = (x ^ (x >> 30)) * (_MIX_1 & _WORD) & _WORD
        x = (x ^ (x >> 27)) * (_MIX_2 & _WORD) & _WORD
        key = x ^ (x >> 31)
    return _signed(key)


def mix(x: Tensor) -> Tensor:
    """Apply splitmix64's finalizer. Products of int64 wrap in the same way on CPU and CUDA."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros. ``>>`` fills with the sign bit, which the mask removes."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


# ---- orders


def shuffled(num_records: int, seed: int, epoch: int, start: int, stop: int) -> Tensor:
    """Return the records at places ``start`` to ``stop`` of a random order: int64 [stop - start].

    Places 0 to ``num_records`` hold every record once.
    """
    key = key_of(seed, epoch, OF_ORDER)
    if num_records <= MOST_SORTED:
        return _sorted_by_keys(num_records, key)[start:stop].clone()
    return bijection(num_records, key, start, stop)


def permutation(num_records: int, seed: int, epoch: int) -> Tensor:
    """Return every record once, in random order: int64 [num_records]."""
    return shuffled(num_records, seed, epoch, 0, num_records)


@lru_cache(maxsize=4)
def _sorted_by_keys(num_records: int, key: int) -> Tensor:
    compiled = find("paceline_permutation")
    order = torch.empty(num_records, dtype=torch.int64)
    if compiled is not None and compiled(num_records, key, order.data_ptr()) == 0:
        return order
    return torch.argsort(mix(torch.arange(num_records) * GOLDEN + key), stable=True)


def bijection(size: int, key: int, start: int, stop: int) -> Tensor:
    """Return ``start`` to ``stop`` mapped by a keyed bijection of 0..size-1: int64 [stop - start].

    One core maps over 100 million numbers per second. ``native/bijection.c`` explains the method.
    """
    num_rows, num_columns, keys = _plan(size, key)
    compiled = find("paceline_bijection")
    if compiled is None:
        return _mapped(torch.arange(start, stop), size, num_rows, num_columns, keys)
    words = keys.to(torch.uint32)
    result = torch.empty(stop - start, dtype=torch.int64)
    pointers = words.data_ptr(), start, stop - start, result.data_ptr()
    compiled(size, num_rows, num_columns, *pointers)
    return result


def bijection_at(numbers: Tensor, size: int, key: int) -> Tensor:
    """Return what ``bijection`` has at ``numbers`` (int64 [n], from 0 to ``size`` - 1)."""
    if size <= WORTH_MAPPING * len(numbers):
        return bijection(size, key, 0, size)[numbers]
    return _mapped(numbers, size, *_plan(size, key))


def _plan(size: int, key: int) -> tuple[int, int, Tensor]:
    num_rows = 2 * ((isqrt(size - 1) + 2) // 2)  # even, and its square is at least ``size``
    keys = (mix(torch.arange(1, NUM_ROUNDS + 1) * GOLDEN + key) >> 32) & _LOW
    return num_rows, -(-size // num_rows), keys


def _mapped(numbers: Tensor, size: int, num_rows: int, num_columns: int, keys: Tensor) -> Tensor:
    """Do in torch what ``paceline_bijection`` does in C."""
    rows, columns = numbers // num_columns, numbers % num_columns
    for for_rows, for_columns in keys.view(-1, 2).tolist():
        rows = (rows + _hashed(columns, for_rows, num_rows)) % num_rows
        columns = (columns + _hashed(rows, for_columns, num_columns)) % num_columns
    result = rows * num_columns + columns
    beyond = result >= size
    if beyond.any():
        result[beyond] = _mapped(result[beyond], size, num_rows, num_columns, keys)
    return result


def _hashed(x: Tensor, key: int, limit: int) -> Tensor:
    """Return hashes from 0 to ``limit`` - 1. ``x`` is below 2**32, ``limit`` at most 2**31."""
    x = ((x ^ key) * 0x9E3779B1) & _LOW
    x = ((x ^ (x >> 15)) * 0x85EBCA77) & _LOW
    x = x ^ (x >> 13)
    return (x * limit) >> 32


def shuffled_in_blocks(
    num_records: int, seed: int, epoch: int, block: int, window: int, start: int, stop: int
) -> Tensor:
    """Return places ``start`` to ``stop`` of a random order of neighbors: int64 [stop - start].

    This suits stores that are larger than memory. Blocks of ``block`` neighboring records are
    shuffled first, and then the records inside each run of ``window`` blocks.
    """
    size = block * window
    parts: list[Tensor] = []
    for number in range(start // size, -(-stop // size)):
        first = number * size
        records = _window(num_records, seed, epoch, block, first, min(first + size, num_records))
        parts.append(records[max(0, start - first) : stop - first])
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


_blocks = lru_cache(maxsize=2)(permutation)


@lru_cache(maxsize=2)
def _window(num_records: int, seed: int, epoch: int, block: int, start: int, stop: int) -> Tensor:
    blocks = _blocks(-(-num_records // block), seed, epoch)
    missing = len(blocks) * block - num_records  # in the store's last block
    places = torch.arange(start, stop)
    if missing:
        end = int((blocks == len(blocks) - 1).nonzero()) * block + block - missing
        places = torch.where(places < end, places, places + missing)
    records = blocks[places // block] * block + places % block
    keys = mix(records * GOLDEN + key_of(seed, epoch, IN_WINDOW))
    return records[torch.argsort(keys, stable=True)]


# ---- samples


@final
@dataclass(frozen=True)
class Sampling:
    """Systematic sampling: each record comes as often as its weight says, as evenly as possible.

    The ``num_places`` slots of an epoch lie evenly on a line, on which each group of records with
    equal weights has an interval. With one random shift per epoch, slot ``s`` lies at ``s +
    shift``. So each group gets its expected number of slots, rounded down or up. Inside a group,
    the slots go to its records in random order, again and again, so that this holds for each
    record, too. Each time that a record comes in an epoch, it gets other random changes.
    Source: Madow, "On the theory of systematic sampling", 1949.
    """

    num_places: int  # slots of an epoch
    ends: Tensor  # where the interval of each group ends, in slots: float64 [num_groups]
    members: Tensor  # places among the records in use, group by group: int64 [num_used]
    starts: Tensor  # where each group begins in ``members``, and the end: int64 [num_groups + 1]

    @property
    def identity(self) -> dict[str, int]:
        """What decides the records, besides the seed."""
        ends = crc32(self.ends.numpy().tobytes())
        return {"sampling": crc32(self.members.numpy().tobytes(), ends)}

    def drawn(self, slots: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the records that fill ``slots`` (int64 [n], from 0, in random order), and a count.

        A record is its place among those in use. The count numbers the times that a record comes
        in the epoch, from 0, in any order. Both are int64 [n].
        """
        shift = (key_of(seed, epoch, SHIFT) & ((1 << _BITS) - 1)) / (1 << _BITS)
        groups = torch.searchsorted(self.ends, slots + shift, right=True)
        groups = groups.clamp(max=len(self.ends) - 1)  # the last end may be rounded down
        begins = torch.cat([self.ends.new_zeros(1), self.ends])[groups]
        turns = slots - (begins - shift).ceil().long()  # in its group, from 0
        sizes = self.starts.diff()
        if len(sizes) == len(self.members):
            return self.members[groups], turns
        inside = torch.zeros_like(slots)
        for group in groups[sizes[groups] > 1].unique().tolist():
            here = groups == group
            size = int(sizes[group])
            key = key_of(seed, epoch, IN_GROUP, group)
            inside[here] = bijection_at(turns[here] % size, size, key)
        return self.members[self.starts[groups] + inside], turns // sizes[groups]


def sampling(groups: Tensor, weights: Tensor, num_places: int | None) -> Sampling:
    """Return how records come by weight.

    Args:
        groups: The number of each used record's group, from 0: int64 [num_used].
        weights: Of a record of each group, 0 or more, not all 0: float64 [num_groups].
        num_places: Of an epoch; None: the sum of all weights, which are expected numbers of times.
    """
    if num_places is not None:  # shares: no sum of them may overflow, or round to nothing
        weights = weights / weights.max()
    is_drawn = weights > 0
    places = is_drawn[groups].nonzero().squeeze(1)
    groups = (is_drawn.cumsum(0) - 1)[groups[places]]
    weights = weights[is_drawn]
    members = places[torch.argsort(groups, stable=True)]
    sizes = torch.bincount(groups, minlength=len(weights))
    ends = (weights * sizes).cumsum(0)
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    if num_places is None:
        return Sampling(int(ends[-1] + ROUNDING), ends, members, starts)
    return Sampling(num_places, ends * (num_places / ends[-1]), members, starts)
