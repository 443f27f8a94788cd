"""On what kind of disk a store lies."""

import os
from pathlib import Path

MOUNTS, BLOCKS = Path("/proc/self/mountinfo"), Path("/sys/dev/block")
IN_MEMORY = {"tmpfs", "ramfs"}
NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "ceph",
    "9p",
    "glusterfs",
    "beegfs",
    "gpfs",
    "virtiofs",
}


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
