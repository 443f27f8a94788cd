"""Where a store's bytes lie: on what kind of disk, and how many of them in the page cache already."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

MOUNTS, BLOCKS = Path("/proc/self/mountinfo"), Path("/sys/dev/block")
IN_MEMORY = {"tmpfs", "ramfs"}
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "9p", "glusterfs", "beegfs", "gpfs", "virtiofs"}
PROT_READ, MAP_SHARED = 1, 1  # sys/mman.h


def disk_kind(path: str) -> str:
    """``memory``, ``network``, ``rotating``, ``solid state``, or ``unknown (its file system)``, as the kernel has it: a virtual disk may call
    itself rotating.
    """
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    system = file_system(number, MOUNTS.read_text(encoding="utf-8") if MOUNTS.exists() else "")
    if system in IN_MEMORY:
        return "memory"
    if system in NETWORK or system.startswith("fuse."):
        return "network"
    return _block_kind(number) or f"unknown ({system or 'no such mount'})"


def file_system(number: str, mounts: str) -> str:
    """The type of the file system on device ``number`` (major:minor); ``mounts``: as /proc/self/mountinfo. Empty where it is not there."""
    for line in mounts.splitlines():
        words = line.split()
        if "-" in words[:-1] and words[2] == number:
            return words[words.index("-") + 1]
    return ""


def _block_kind(number: str) -> str:
    """By the queue of the device, or of the disk that a partition is on."""
    place = BLOCKS / number
    for folder in (place, place.resolve().parent):
        file = folder / "queue" / "rotational"
        if file.is_file():
            return "rotating" if file.read_text(encoding="ascii").strip() == "1" else "solid state"
    return ""


def cached_share(paths: Sequence[str]) -> float | None:
    """The share of these files' bytes that is in the page cache (0 to 1). None where the system does not tell: not Linux, or no right to."""
    pages = [_resident(path) for path in paths if os.path.getsize(path)]
    known = [found for found in pages if found is not None]
    total = sum(number for _, number in known)
    return sum(resident for resident, _ in known) / total if total else None


def _resident(path: str) -> tuple[int, int] | None:
    """(pages in memory, pages) of a file, by mincore(2) over a map that nobody reads."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mincore"):
        return None
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    size = os.path.getsize(path)
    count = -(-size // mmap.PAGESIZE)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, PROT_READ, MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    pages = ctypes.create_string_buffer(count)
    failed = libc.mincore(address, size, pages)
    libc.munmap(address, size)
    return None if failed else (int((np.frombuffer(pages.raw, np.uint8) & 1).sum()), count)
