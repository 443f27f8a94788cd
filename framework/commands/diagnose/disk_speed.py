"""The kind of disk that holds a store."""

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
BLOCKS = Path("/sys/dev/block")
IN_MEMORY = ("tmpfs", "ramfs")
NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "9p", "glusterfs", "beegfs", "gpfs", "virtiofs"
}  # fmt: skip


def disk_kind(path: str) -> str:
    """Return memory, network, rotating, solid state, or "unknown (FILE SYSTEM)".

    The kernel is believed: a virtual disk may call itself rotating.
    """
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    system = file_system(number, MOUNTS.read_text(encoding="utf-8") if MOUNTS.exists() else "")
    if system in IN_MEMORY:
        return "memory"
    if system in NETWORK or system.startswith("fuse."):
        return "network"
    block = BLOCKS / number
    for folder in (block, block.resolve().parent):  # a partition's queue is that of its disk
        file = folder / "queue" / "rotational"
        if file.is_file():
            rotates = file.read_text(encoding="ascii").strip() == "1"
            return "rotating" if rotates else "solid state"
    return f"unknown ({system or 'no such mount'})"


def file_system(number: str, mounts: str) -> str:
    """Return the file system on device ``number`` (major:minor), or "" if it is not mounted.

    ``mounts`` is the text of /proc/self/mountinfo.
    """
    for line in mounts.splitlines():
        words = line.split()
        if "-" in words[:-1] and words[2] == number:
            return words[words.index("-") + 1]
    return ""
