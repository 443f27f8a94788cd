"""How fast records are read from a disk, and from the memory that caches it."""

import mmap
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

NUM_THREADS = 8
PAGE = mmap.PAGESIZE
# More of a huge file or record says nothing new.
MOST_BYTES = 4 << 20


class Piece(NamedTuple):
    """The part of a file that a record takes."""

    path: str
    start: int
    length: int  # bytes


class DiskRate(NamedTuple):
    """Bytes per second of reading pieces of files at random."""

    cold: float  # from the disk, in one thread
    cold_many: float  # from the disk, in `NUM_THREADS` threads together
    warm: float  # from the page cache, in one thread


def disk_rate(pieces: Sequence[Piece], seconds: float) -> DiskRate | None:
    """Measure reading ``pieces`` in about ``seconds``; None if the page cache cannot be avoided.

    No piece should occur twice.
    """
    half = len(pieces) // 2
    try:
        cold = _rate(pieces[:half], seconds / 3, direct=True)
        with ThreadPoolExecutor(NUM_THREADS, "paceline-disk") as pool:
            parts = [pieces[half + n :: NUM_THREADS] for n in range(NUM_THREADS)]
            jobs = [pool.submit(_rate, part, seconds / 3, True) for part in parts if part]
            cold_many = sum(job.result() for job in jobs)
        _rate(pieces[:half], seconds / 6, direct=False)
        warm = _rate(pieces[:half], seconds / 6, direct=False)
    except OSError:  # the file system has no direct access, or a file is gone
        return None
    return DiskRate(cold, cold_many, warm)


def _rate(pieces: Sequence[Piece], seconds: float, direct: bool) -> float:
    """Return bytes per second of one thread. At least one piece is read."""
    num_bytes = 0
    start = time.perf_counter()
    for piece in pieces:
        num_bytes += _read(piece, direct)
        if time.perf_counter() - start > seconds:
            break
    return num_bytes / (time.perf_counter() - start)


def _read(piece: Piece, direct: bool) -> int:
    """Read a piece, and return its bytes. ``direct`` reads it from the disk, even if it is cached.

    Direct access needs whole pages, in the file and in memory. Source: open(2), O_DIRECT.
    """
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    first = piece.start // PAGE * PAGE
    length = min(piece.start + piece.length - first, MOST_BYTES)
    descriptor = os.open(piece.path, flags)
    try:
        with mmap.mmap(-1, -(-length // PAGE) * PAGE) as buffer:
            with suppress(AttributeError):  # not on every system
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            return min(piece.length, os.preadv(descriptor, [buffer], first))
    finally:
        os.close(descriptor)
