"""The kind of disk that holds a store."""

import os
from pathlib import Path

import psutil

BLOCKS = Path("/sys/dev/block")
IN_MEMORY = ("tmpfs", "ramfs")
NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "9p", "glusterfs", "beegfs", "gpfs", "virtiofs"
}  # fmt: skip


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
    system = "no such mount"
    longest = 0
    for mount in psutil.disk_partitions(all=True):
        # A later mount hides an earlier one in the same place.
        if place.is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= longest:
            system = mount.fstype
            longest = len(mount.mountpoint)
    return system
