"""Copies pieces of memory from anywhere side by side: the inner loop of reading raw records."""

import math
from typing import final

import numpy as np
import torch
from torch import Tensor

from framework.store.cold_pages import Map, ask_pages
from framework.system.native import find, num_threads
from framework.system.page_locked import empty

# Larger results are shared by threads. Waking one costs as much as copying some 100 kB.
SHARED_BYTES = 1 << 18
ANYWHERE = (1 << 63) - 1  # the length of a source that is the whole memory


@final
class Gather:
    """Copies pieces of a source: the piece at ``place`` begins at byte ``stride * place``.

    ``native/gather.c`` copies them if it was compiled, else torch does. The source is uint8 [size],
    on the host. ``shape`` and ``dtype`` are those of a piece.
    """

    def __init__(
        self, source: Tensor, stride: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self.source = source
        self.stride = stride
        self.shape = shape
        self.dtype = dtype
        self.num_bytes = math.prod(shape) * dtype.itemsize
        self._compiled = find("paceline_gather")
        self._where = Map(source.data_ptr(), len(source))

    def __call__(self, places: Tensor) -> Tensor:
        """Return [B, *shape] for int64 [B]. IndexError if a piece is not inside the source."""
        count = len(places)
        num_bytes = self.num_bytes
        if self._compiled is None:
            self._check(places)
            flat = _by_torch(self.source, places * self.stride, num_bytes)
            return flat.view(self.dtype).view(count, *self.shape)
        if not places.is_contiguous():
            places = places.contiguous()
        out = empty((count, *self.shape), self.dtype)
        threads = num_threads() if count * num_bytes >= SHARED_BYTES else 1
        piece = (places.data_ptr(), self.stride, count, num_bytes)
        if self._compiled(*self._where, *piece, out.data_ptr(), threads):
            self._check(places)
        return out

    def ask(self, places: Tensor) -> None:
        """Ask the disk for the pieces, if the source is a map of a file."""
        ask_pages(self._where, places, self.num_bytes, self.stride)

    def _check(self, places: Tensor) -> None:
        last = (len(self.source) - self.num_bytes) // max(1, self.stride)
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) <= last:
            raise IndexError(
                f"places {int(places.min())}..{int(places.max())}, of which the last is {last}"
            )


def row_gather(rows: Tensor) -> Gather:
    """Return a gather of the rows of a contiguous tensor."""
    shape = tuple(rows.shape[1:])
    # NumPy also views an array of no rows, which torch refuses.
    flat = torch.from_numpy(rows.numpy().reshape(-1).view(np.uint8))
    return Gather(flat, math.prod(shape) * rows.element_size(), shape, rows.dtype)


def gather_at(addresses: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return copies of the values at ``addresses`` (int64 [B]) in this process: [B, *shape].

    For callers that know that ``paceline_gather`` was compiled, and that the addresses are right.
    """
    out = empty((len(addresses), *shape), dtype)
    size = math.prod(shape) * dtype.itemsize
    threads = num_threads() if out.nbytes >= SHARED_BYTES else 1
    begin = addresses.contiguous().data_ptr()
    find("paceline_gather")(0, ANYWHERE, begin, 1, len(addresses), size, out.data_ptr(), threads)
    return out


def _by_torch(source: Tensor, offsets: Tensor, num_bytes: int) -> Tensor:
    """Return uint8 [B, num_bytes]. All pieces are inside the source.

    They are rows of a view whose rows overlap. A row begins at every word of 8 bytes if all offsets
    are multiples of 8, else at every byte.
    """
    if not (num_bytes and len(offsets)):
        return torch.empty((len(offsets), num_bytes), dtype=torch.uint8)
    is_wide = num_bytes % 8 == 0 and source.data_ptr() % 8 == 0 and not (offsets & 7).any()
    step = 8 if is_wide else 1
    flat = source[: len(source) // step * step].view(torch.int64) if is_wide else source
    width = num_bytes // step
    rows = flat.as_strided((len(flat) - width + 1, width), (1, 1))
    return rows.index_select(0, offsets // step).view(torch.uint8).view(len(offsets), num_bytes)
