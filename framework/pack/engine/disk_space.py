"""Disk space: how much a packing needs, how much is free, and how much is missing."""

import os
from pathlib import Path

from framework.contracts.records import Manifest
from framework.errors import ResourceError
from framework.pack.engine.jobs import DiskFull, PackPlan

PAGE_BYTES = 4096  # LMDB gives a value of more than half a page whole pages
RECORD_BYTES = 64  # what a store adds to a record
NUMBERED_BYTES = 8  # the same if its key is a number


def free_bytes(path: Path) -> int:
    """Return what this user may write to the file system that ``path`` is, or will be, on."""
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def needed_bytes(
    plan: PackPlan, manifest: Manifest, num_jobs: int, is_joined: bool, suffix: str
) -> int:
    """Return the bytes that ``num_jobs`` more jobs, and perhaps joining all files, take."""
    item_bytes = stored_bytes(plan.item_bytes, suffix)
    if plan.reads_arrays and all(field.encoding == "raw" for field in manifest.fields.values()):
        item_bytes = plan.item_bytes + NUMBERED_BYTES
    parts = num_jobs * plan.items_per_job * item_bytes
    if not is_joined:
        return int(parts)
    copies = 1
    if suffix == ".h5" and any(field.encoding != "raw" for field in manifest.fields.values()):
        copies = 2  # the HDF5 writer spools image files beside its output
    return int(parts + copies * plan.num_items * item_bytes)


def stored_bytes(item_bytes: float, suffix: str) -> float:
    """Return the bytes that an item of ``item_bytes`` takes in a file."""
    if suffix == ".lmdb" and item_bytes > PAGE_BYTES / 2:
        return -(-(item_bytes + RECORD_BYTES) // PAGE_BYTES) * PAGE_BYTES
    return item_bytes + RECORD_BYTES


def check_space(path: Path, needed: int) -> None:
    """Raise ResourceError R151 if there is not enough space, before anything is written."""
    free = free_bytes(path.absolute())
    if needed > free:
        missing = f"{needed - free:,} are missing"
        what = f"packing needs about {needed:,} bytes, {free:,} are free: {missing}"
        fix = "free them, choose another output.path, or store less (advise=true)"
        raise ResourceError(151, str(path), what, fix)


def with_shortage(error: DiskFull, path: Path, needed: int) -> DiskFull:
    """Return the error with the bytes that are missing to finish.

    Free space does not show a quota or a limit on file sizes. A page is missing at least.
    """
    missing = max(needed - free_bytes(path.absolute()), PAGE_BYTES)
    what = f"{error.args[2]}; about {missing:,} more bytes are needed"
    fix = "free them: finished jobs are kept, and the same command resumes"
    return DiskFull(101, error.args[1], what, fix)
