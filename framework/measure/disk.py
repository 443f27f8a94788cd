"""The kind of disk that holds a store, and how fast records are read from it past the cache."""

import mmap
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil

BLOCKS = Path("/sys/dev/block")
IN_MEMORY = ("tmpfs", "ramfs")
NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "9p", "glusterfs", "beegfs", "gpfs", "virtiofs"
}  # fmt: skip
NUM_THREADS = 8
MOST_BYTES = 4 << 20  # more of a huge file or record says nothing new


def disk_kind(path: str) -> str:
    """Return memory, network, rotating, solid state, or "unknown (FILE SYSTEM)".

    The kernel is believed: a virtual disk may call itself rotating.
    """
    system = file_system(path)
    if system in IN_MEMORY:
        return "memory"
    if system in NETWORK or system.startswith("fuse."):
        return "network"
    device = os.stat(path).st_dev
    block = BLOCKS / f"{os.major(device)}:{os.minor(device)}"
    for folder in (block, block.resolve().parent):  # a partition's queue is that of its disk
        file = folder / "queue" / "rotational"
        if file.is_file():
            rotates = file.read_text(encoding="ascii").strip() == "1"
            return "rotating" if rotates else "solid state"
    return f"unknown ({system})"


def file_system(path: str) -> str:
    """Return the type of the file system that holds ``path``."""
    place = Path(path).resolve()
    mounts = [
        (len(mount.mountpoint), number, mount.fstype)
        for number, mount in enumerate(psutil.disk_partitions(all=True))
        if place.is_relative_to(mount.mountpoint)
    ]
    # A later mount hides an earlier one in the same place.
    return max(mounts, default=(0, 0, "no such mount"))[2]


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
    return DiskRate(cold, cold_many) if cold and cold_many else None


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
    first = piece.start // mmap.PAGESIZE * mmap.PAGESIZE
    length = min(piece.start + piece.length - first, MOST_BYTES)
    descriptor = os.open(piece.path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, -(-length // mmap.PAGESIZE) * mmap.PAGESIZE) as buffer:
            return min(piece.length, os.preadv(descriptor, [buffer], first))
    finally:
        os.close(descriptor)
