"""Random numbers that are pure functions of (seed, epoch, record).

The generator is splitmix64's finalizer over a counter, so every machine and library version gives
the same numbers. A resumed run can compute any step directly and needs no saved generator.
Source: Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from dataclasses import dataclass, field
from functools import lru_cache

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

# Streams of random numbers: each use draws from its own, so that no two uses are correlated.
OF_ORDER = 0  # the records of an epoch
ON_DEVICE = 1  # augments
_OTHER_GENERATORS = 2  # ``record_seeds``
IN_WINDOW = 3  # the second shuffle of ``block_order``
ON_HOST = 4  # transforms
IN_BUCKET = 5  # the records of a bucket
IN_GROUP = 6  # the records of a group of equal weights
SHIFT = 7  # of systematic sampling


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
        key = device_key(self.seed, epoch)
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


def device_key(seed: int, epoch: int) -> Tensor:
    """Return the ``keyed_draws`` key for an epoch's augments: int64 [], in host memory.

    A compiled kernel takes a tensor as an argument, but would contain a plain number as a constant.
    """
    return torch.tensor(key_of(seed, epoch, ON_DEVICE))


def record_seeds(indices: Tensor, seed: int, epoch: int) -> Tensor:
    """Return one seed per record for generators of other libraries: int64 [B], 0 or more."""
    key = key_of(seed, epoch, _OTHER_GENERATORS)
    return _shift(mix((indices + 1) * GOLDEN + key), 1)


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
