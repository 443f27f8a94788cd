"""Room on the disk: how much a packing needs, is there, and is missing."""

import os
from pathlib import Path

from framework.contracts.records import Manifest
from framework.errors import ResourceError
from framework.pack.engine.jobs import DiskFull, PackPlan

PAGE_BYTES = 4096  # LMDB gives a value of more than half a page whole pages


def free_bytes(path: Path) -> int:
    """Room on the file system that ``path`` is, or will be, on, for who we are."""
    while not path.exists():
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def needed_bytes(
    plan: PackPlan, manifest: Manifest, num_jobs: int, one_file: bool, suffix: str
) -> int:
    """What ``num_jobs`` more jobs and the finish will take: the parts; joined, the file; and HDF5 spools image files beside it."""
    parts = num_jobs * plan.items_per_job * stored_bytes(plan.item_bytes, suffix)
    if not one_file or plan.num_jobs == 1:
        return int(parts)
    whole = plan.num_items * stored_bytes(plan.item_bytes, suffix)
    spools = suffix == ".h5" and any(field.encoding != "raw" for field in manifest.fields.values())
    return int(parts + whole * (2 if spools else 1))


def stored_bytes(item_bytes: float, suffix: str) -> float:
    """What an item of so many bytes takes in a file."""
    if suffix == ".lmdb" and item_bytes > PAGE_BYTES / 2:
        return -(-(item_bytes + 64) // PAGE_BYTES) * PAGE_BYTES
    return item_bytes + 64


def check_space(path: Path, needed: int) -> None:
    """ResourceError R151 where there is not enough, before anything is written."""
    free = free_bytes(path.absolute())
    if needed > free:
        what = f"packing needs about {needed:,} bytes, {free:,} are free: {needed - free:,} are missing"
        raise ResourceError(
            151,
            str(path),
            what,
            "free them, choose another output.path, or store less (advise=true)",
        )


def with_shortage(error: DiskFull, path: Path, needed: int) -> DiskFull:
    """The error with what is missing to go on. A quota or a limit on files is not known: then a job's worth at least is said."""
    missing = max(needed - free_bytes(path.absolute()), PAGE_BYTES)
    what = f"{error.args[2]}; about {missing:,} more bytes are needed"
    return DiskFull(
        101, error.args[1], what, "free them: finished jobs are kept, and the same command goes on"
    )
