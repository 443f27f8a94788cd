"""How fast records are read from a disk, past the memory that caches it."""

import mmap
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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

    cold: float  # in one thread
    cold_many: float  # in `NUM_THREADS` threads together


def disk_rate(pieces: Sequence[Piece], seconds: float) -> DiskRate | None:
    """Measure reading ``pieces`` in about ``seconds``.

    None if the cache cannot be passed by, or if there is too little to read.
    """
    half = len(pieces) // 2
    try:
        cold = _rate(pieces[:half], seconds / 2)
        with ThreadPoolExecutor(NUM_THREADS, "paceline-disk") as pool:
            parts = [pieces[half + n :: NUM_THREADS] for n in range(NUM_THREADS)]
            jobs = [pool.submit(_rate, part, seconds / 2) for part in parts if part]
            cold_many = sum(job.result() for job in jobs)
    except (OSError, AttributeError):  # no direct access here, or a file is gone
        return None
    if cold and cold_many:
        return DiskRate(cold, cold_many)
    return None


def _rate(pieces: Sequence[Piece], seconds: float) -> float:
    """Return bytes per second of one thread. The first piece is read, however long it takes."""
    num_bytes = 0
    start = time.perf_counter()
    for piece in pieces:
        num_bytes += _read(piece)
        if time.perf_counter() - start > seconds:
            break
    return num_bytes / (time.perf_counter() - start)


def _read(piece: Piece) -> int:
    """Read a piece from the disk, even if it is cached, and return its bytes.

    Direct access needs whole pages, in the file and in memory. Source: open(2), O_DIRECT.
    """
    first = piece.start // PAGE * PAGE
    length = min(piece.start + piece.length - first, MOST_BYTES)
    descriptor = os.open(piece.path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, -(-length // PAGE) * PAGE) as buffer:
            return min(piece.length, os.preadv(descriptor, [buffer], first))
    finally:
        os.close(descriptor)
