"""Asks the system for the pages of a batch at once, if a mapped file is not in memory."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from framework.system.native import find


class Map(NamedTuple):
    """A mapped file, or a part of it: where it begins in memory, and its bytes."""

    address: int
    num_bytes: int


def map_of(array: np.ndarray) -> Map:
    """Return the memory of a contiguous array."""
    return Map(array.ctypes.data, array.nbytes)


def should_ask() -> bool:
    """Return whether this thread's reading waits for a disk, as far as it knows.

    ``native/ask_pages.c`` says how it knows. To be called once before each batch. Takes less than a
    microsecond. False without the compiled functions.
    """
    decide = find("paceline_should_ask")
    return decide is not None and decide() == 1


def ask_pages(source: Map, starts: Tensor, sizes: Tensor | int, stride: int = 1) -> int:
    """Let the disk read pieces of a mapped file at the same time, before they are used.

    Args:
        source: The map.
        starts: Where the pieces begin, in units of ``stride``: int64 [B]. Those outside of the map
            are left out.
        sizes: The bytes of each piece: int64 [B], or one number for all.
        stride: The unit of ``starts``, in bytes.

    Returns:
        The bytes that were asked for, at most 64 MB and a piece. 0 without the compiled functions.
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
