"""Random orders of records: pure functions of (seed, epoch, place).

Any part of an order is computed alone, so an epoch begins at once, however many records it has, and
a resumed run jumps to its place.
"""

from functools import lru_cache
from math import isqrt

import torch
from torch import Tensor

from framework.order.draws import GOLDEN, IN_WINDOW, OF_ORDER, key_of, mix
from framework.system.native import find

# Up to so many records are sorted by random keys, which gives every order the same probability.
# That takes 2 ms per epoch.
MOST_SORTED = 1 << 16
# Of ``paceline_bijection``. With 6, the 24 orders of four numbers are not equally frequent.
NUM_ROUNDS = 8
# In torch, a number takes so many times as long as in C.
WORTH_MAPPING = 32
_LOW = 0xFFFFFFFF


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
    keys = mix(torch.arange(num_records) * GOLDEN + key)
    return torch.argsort(keys, stable=True)


def bijection(size: int, key: int, start: int, stop: int) -> Tensor:
    """Return ``start`` to ``stop`` mapped by a keyed bijection of 0..size-1: int64 [stop - start].

    One core maps over 100 million numbers per second. ``native/bijection.c`` explains the method.
    """
    num_rows, num_columns, keys = _plan(size, key)
    compiled = find("paceline_bijection")
    if compiled is None:
        return _mapped(torch.arange(start, stop), size, num_rows, num_columns, keys.tolist())
    words = keys.to(torch.uint32)
    result = torch.empty(stop - start, dtype=torch.int64)
    pointers = words.data_ptr(), start, stop - start, result.data_ptr()
    compiled(size, num_rows, num_columns, *pointers)
    return result


def bijection_at(numbers: Tensor, size: int, key: int) -> Tensor:
    """Return what ``bijection`` has at ``numbers`` (int64 [n], from 0 to ``size`` - 1)."""
    if size <= WORTH_MAPPING * len(numbers):
        return bijection(size, key, 0, size)[numbers]
    num_rows, num_columns, keys = _plan(size, key)
    return _mapped(numbers, size, num_rows, num_columns, keys.tolist())


def _plan(size: int, key: int) -> tuple[int, int, Tensor]:
    """Return the rows and columns of a bijection's table, and the keys of its rounds."""
    num_rows = 2 * ((isqrt(size - 1) + 2) // 2)  # even, and its square is at least ``size``
    keys = (mix(torch.arange(1, NUM_ROUNDS + 1) * GOLDEN + key) >> 32) & _LOW
    return num_rows, -(-size // num_rows), keys


def _mapped(numbers: Tensor, size: int, num_rows: int, num_columns: int, keys: list[int]) -> Tensor:
    """Do in torch what ``paceline_bijection`` does in C."""
    rows, columns = numbers // num_columns, numbers % num_columns
    for place in range(0, NUM_ROUNDS, 2):
        rows = (rows + _hashed(columns, keys[place], num_rows)) % num_rows
        columns = (columns + _hashed(rows, keys[place + 1], num_columns)) % num_columns
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


@lru_cache(maxsize=2)
def _window(num_records: int, seed: int, epoch: int, block: int, start: int, stop: int) -> Tensor:
    """Return the records of a window, which has the places ``start`` to ``stop``: int64."""
    blocks = _blocks(-(-num_records // block), seed, epoch)
    missing = len(blocks) * block - num_records  # in the store's last block
    places = torch.arange(start, stop)
    if missing:
        end = int((blocks == len(blocks) - 1).nonzero()) * block + block - missing
        places = torch.where(places < end, places, places + missing)
    records = blocks[places // block] * block + places % block
    keys = mix(records * GOLDEN + key_of(seed, epoch, IN_WINDOW))
    return records[torch.argsort(keys, stable=True)]


@lru_cache(maxsize=2)
def _blocks(num_blocks: int, seed: int, epoch: int) -> Tensor:
    return shuffled(num_blocks, seed, epoch, 0, num_blocks)
