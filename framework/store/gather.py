"""Copies pieces of memory from anywhere side by side: the inner loop of reading.

If a mapped file is not in memory, ``ask_pages`` asks the system for the pages of a batch at once.
"""

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Ragged, joined
from framework.system.memory import empty
from framework.system.native import find, num_threads

# Larger results are shared by threads. Waking one costs as much as copying some 100 kB.
SHARED_BYTES = 1 << 18
ANYWHERE = (1 << 63) - 1  # the length of a source that is the whole memory


Map = tuple[int, int]  # a mapped file, or a part of it: where it begins in memory, and its bytes


def map_of(array: np.ndarray) -> Map:
    return array.ctypes.data, array.nbytes


def should_ask() -> bool:
    """Return whether this thread waits for a disk (``native/ask_pages.c``), once per batch."""
    decide = find("paceline_should_ask")
    return decide is not None and decide() == 1


def ask_pages(source: Map, starts: Tensor, sizes: Tensor | int, stride: int = 1) -> int:
    """Let the disk read pieces of a mapped file at the same time, before they are used.

    Pieces begin at multiples of ``stride`` bytes (int64 [B]) and have so many bytes (int64 [B], or
    one number for all). Those outside of the map are left out. Return the bytes that were asked
    for, at most 64 MB and a piece; 0 without the compiled function.
    """
    ask = find("paceline_ask_pages")
    if ask is None:
        return 0
    starts = starts.contiguous()
    places = (starts.data_ptr(), stride)
    if isinstance(sizes, int):
        return ask(*source, *places, None, sizes, len(starts))
    sizes = sizes.contiguous()
    return ask(*source, *places, sizes.data_ptr(), 0, len(starts))


def check_range(indices: Tensor, count: int) -> None:
    """Raise IndexError if an index is not one of ``count`` places."""
    numbers = indices.numpy()  # whose operators keep Python's lock, which takes less than giving it
    if not len(numbers):
        return
    first, last = np.minimum.reduce(numbers), np.maximum.reduce(numbers)
    if not 0 <= first <= last < count:
        raise IndexError(f"records {first}..{last} of {count}")


@final
class Gather:
    """Copies pieces of a source: the piece at ``place`` begins at byte ``stride * place``.

    The source is uint8 [size], on the host, or None for all memory, if there is a compiled
    function. ``shape`` and ``dtype`` are those of a piece.
    """

    def __init__(
        self, source: Tensor | None, stride: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self.source: Any = source
        self.stride, self.shape, self.dtype = stride, shape, dtype
        self.num_bytes = math.prod(shape) * dtype.itemsize
        self._compiled = find("paceline_gather")
        self._where = (0, ANYWHERE) if source is None else (source.data_ptr(), len(source))

    def __call__(self, places: Tensor) -> Tensor:
        """Return [B, *shape] for int64 [B]. IndexError if a piece is not inside the source."""
        count, num_bytes = len(places), self.num_bytes
        if self._compiled is None:
            self.check(places)
            sizes = torch.full_like(places, num_bytes)
            data = gather_rows(self.source, places * self.stride, sizes)
            return data.view(self.dtype).view(count, *self.shape)
        places = places.contiguous()
        out = empty((count, *self.shape), self.dtype)
        threads = num_threads() if count * num_bytes >= SHARED_BYTES else 1
        piece = (places.data_ptr(), self.stride, count, num_bytes)
        if self._compiled(*self._where, *piece, out.data_ptr(), threads):
            self.check(places)
        return out

    def ask(self, places: Tensor) -> None:
        """Ask the disk for the pieces, if the source is a map of a file."""
        ask_pages(self._where, places, self.num_bytes, self.stride)

    def check(self, places: Tensor) -> None:
        """Raise IndexError if a piece is not inside the source."""
        check_range(places, (self._where[1] - self.num_bytes) // max(1, self.stride) + 1)


def row_gather(rows: Tensor) -> Gather:
    """Return a gather of the rows of a contiguous tensor."""
    shape = tuple(rows.shape[1:])
    return Gather(_flat(rows), math.prod(shape) * rows.element_size(), shape, rows.dtype)


def gather_rows(source: Tensor, starts: Tensor, sizes: Tensor) -> Tensor:
    """Return pieces of ``source`` (uint8 [n], on the host) one after another.

    ``starts`` and ``sizes`` are their first bytes and their lengths: int64 [B]. IndexError if a
    piece is not inside the source.
    """
    ends = sizes.cumsum(0)
    total = int(sizes.sum())
    if total > len(source) * max(1, len(sizes)):  # a damaged store must not exhaust the memory
        raise IndexError(f"pieces of {total} bytes of {len(source)}")
    result = torch.empty(total, dtype=torch.uint8)
    _copy(source, starts, sizes, ends - sizes, result)
    return result


def padded(ragged: Ragged) -> Tensor:
    """Return the arrays side by side, with zeros behind short ones: [B, longest, *rest]."""
    values, lengths = ragged
    longest = int(lengths.max()) if len(lengths) else 0
    result = empty((len(lengths), longest, *values.shape[1:]), values.dtype).zero_()
    row_bytes = math.prod(values.shape[1:]) * values.element_size()
    sizes = lengths * row_bytes
    targets = torch.arange(len(lengths)) * (longest * row_bytes)
    _copy(_flat(values), sizes.cumsum(0) - sizes, sizes, targets, _flat(result))
    return result


def ragged_of(arrays: Sequence[np.ndarray], field: Field) -> Ragged:
    """Put the arrays of several records of a ragged field one after another."""
    nothing = np.empty((0, *field.row_shape), field.dtype)
    lengths = torch.tensor([len(array) for array in arrays], dtype=torch.int64)
    return Ragged(torch.from_numpy(np.concatenate([nothing, *arrays])), lengths)


def taken(values: Any, places: Tensor) -> Any:
    """Return the values at ``places`` (int64 [n]) of a field of several records, in that order."""
    if isinstance(values, Tensor):
        return values[places]
    if not isinstance(values, Ragged):
        return [values[place] for place in places.tolist()]
    rows = values.values
    sizes = values.lengths * (math.prod(rows.shape[1:]) * rows.element_size())
    starts = sizes.cumsum(0) - sizes
    chosen = gather_rows(_flat(rows), starts[places], sizes[places])
    return Ragged(chosen.view(rows.dtype).view(-1, *rows.shape[1:]), values.lengths[places])


def merged(parts: Sequence[Any], order: Tensor) -> Any:
    """Put the values of a field, from several places, in the ``order`` of a batch: int64 [B]."""
    values = joined(parts)
    if len(parts) == 1:
        return values
    # Assigning rows by their places takes ten times as long.
    return row_gather(values)(order) if isinstance(values, Tensor) else taken(values, order)


def _flat(values: Tensor) -> Tensor:
    # NumPy also views an array of no rows, which torch refuses.
    return torch.from_numpy(values.contiguous().numpy().reshape(-1).view(np.uint8))


def _copy(source: Tensor, starts: Tensor, sizes: Tensor, targets: Tensor, out: Tensor) -> None:
    starts, sizes, targets = starts.contiguous(), sizes.contiguous(), targets.contiguous()
    compiled = find("paceline_gather_rows")
    if compiled is not None:
        places = starts.data_ptr(), sizes.data_ptr(), targets.data_ptr(), len(starts)
        if compiled(source.data_ptr(), len(source), *places, out.data_ptr(), len(out)):
            raise IndexError(f"pieces outside of {len(source)} bytes, or of {len(out)}")
        return
    triples = zip(starts.tolist(), sizes.tolist(), targets.tolist(), strict=True)
    for start, size, target in triples:
        if min(start, size, target) < 0 or start + size > len(source):
            raise IndexError(f"bytes {start} to {start + size} of {len(source)}")
        out[target : target + size] = source[start : start + size]
