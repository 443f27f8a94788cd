"""Pieces of memory from anywhere, side by side: what reading a batch of raw records comes to."""

import math
from typing import final

import torch
from torch import Tensor

from framework.contracts.batch import empty
from framework.system.native import find, num_threads

SHARED = (
    1 << 18
)  # bytes of a result from which threads share it: waking one costs as much as copying some 100 kB


@final
class Gather:
    """``gather(places)``: a copy of the pieces of ``source`` (uint8, flat, on the host) that begin at byte ``stride`` times each of ``places``.

    ``shape`` and ``dtype`` are a piece's. By ``native/gather.c``, where that was compiled; else by torch.
    """

    def __init__(
        self, source: Tensor, stride: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self.source, self.stride, self.shape, self.dtype = source, stride, shape, dtype
        self.num_bytes = math.prod(shape) * dtype.itemsize
        self._compiled, self._where = find("paceline_gather"), (source.data_ptr(), len(source))

    def __call__(self, places: Tensor) -> Tensor:
        """[B, *shape] for int64 [B]. IndexError where a piece is not all in the source."""
        count = len(places)
        if self._compiled is None:
            self._check(places)
            return (
                _by_torch(self.source, places * self.stride, self.num_bytes)
                .view(self.dtype)
                .view(count, *self.shape)
            )
        if not places.is_contiguous():
            places = places.contiguous()
        out = empty((count, *self.shape), self.dtype)
        threads = num_threads() if count * self.num_bytes >= SHARED else 1
        if self._compiled(
            *self._where,
            places.data_ptr(),
            self.stride,
            count,
            self.num_bytes,
            out.data_ptr(),
            threads,
        ):
            self._check(places)
        return out

    def _check(self, places: Tensor) -> None:
        room = len(self.source) - self.num_bytes
        last = -1 if room < 0 else room // self.stride if self.stride else room
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) <= last:
            raise IndexError(
                f"places {int(places.min())}..{int(places.max())}, of which the last is {last}"
            )


def _by_torch(source: Tensor, offsets: Tensor, num_bytes: int) -> Tensor:
    """uint8 [B, num_bytes]. The source is viewed as overlapping rows, one beginning at every word of 8 bytes, or else at every byte, and
    rows are selected. All is in there.
    """
    wide = num_bytes % 8 == 0 and source.data_ptr() % 8 == 0 and not (offsets & 7).any()
    step = 8 if wide else 1
    flat = source[: len(source) // step * step].view(torch.int64) if wide else source
    width = num_bytes // step
    if not (num_bytes and len(offsets)):
        return torch.empty((len(offsets), num_bytes), dtype=torch.uint8)
    rows = flat.as_strided((len(flat) - width + 1, width), (1, 1))
    return rows.index_select(0, offsets // step).view(torch.uint8).view(len(offsets), num_bytes)
