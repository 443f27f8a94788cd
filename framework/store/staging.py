"""Where a store lies before it is read: in memory, on a device, or cold on its disk."""

import ctypes
import hashlib
import mmap
import os
import shutil
import stat
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import LABEL, Manifest, Records, RecordStore
from framework.errors import ConfigError, ResourceError
from framework.measure.host import available_memory_bytes
from framework.store import file_store, files, open_store
from framework.store.gather import Gather
from framework.system.memory import LockedFiles, Pieces
from framework.system.native import find
from framework.system.portable import CLOSED_BY_EXEC, NO_FOLLOW, c_function, lock
from framework.system.stopping import at_end

MEMORY = Path("/dev/shm")  # noqa: S108  # the names contain the user's id, links are not followed
SPARE = 0.9  # the share of free memory that may be taken
BLOCK_RECORDS = 4096  # read at a time
# The cores gather smaller values. Of 48 KiB, an H100 copies 50 GB/s; of 24 KiB, 5.5.
LEAST_BYTES = 48 << 10
STAYS = 0.05  # the largest share of a cold file's bytes that may be in memory


@final
class Staged:
    """A copy of the store ``source`` in memory at ``path``, until ``close``.

    All ranks and runs of a user share it. Each process that uses it holds a lock, which the system
    releases if the process dies. The last one, or else the next run, removes the copy.
    ResourceError R107 if the copy does not fit, or cannot be made, as without /dev/shm.
    """

    def __init__(self, source: str) -> None:
        if not MEMORY.is_dir():
            what = f"this system has no {MEMORY} to copy it to"
            raise ResourceError(107, f"data.stage = ram: {source}", what, "set data.stage=none")
        remove_leftovers()
        identity = (os.path.realpath(source), *map(files.identify, open_store.files_of(source)))
        key = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
        self._home = MEMORY / f"paceline-{os.getuid()}-{key}"
        # All links to a store have one copy.
        self.path = str(self._home / os.path.basename(os.path.realpath(source)))
        self._lock = -1
        self._unregister = at_end(lambda _: _remove_unless_used(self._home, self._lock))
        try:
            while not self._take(source):
                os.close(self._lock)  # the last user of a copy removed it meanwhile: try again
        except BaseException:
            self._unregister()
            raise

    def close(self) -> None:
        self._unregister()
        _remove_unless_used(self._home, self._lock)

    def _take(self, source: str) -> bool:
        """Share the copy, and make it if nobody else does. False if it was removed meanwhile."""
        path = self._home.with_suffix(".lock")
        flags = os.O_RDWR | os.O_CREAT | CLOSED_BY_EXEC | NO_FOLLOW
        try:
            self._lock = os.open(path, flags, 0o600)
        except OSError as error:
            what = f"{path} cannot be opened ({error.strerror})"
            fix = "remove it, or set data.stage=none"
            raise ResourceError(107, f"data.stage = ram: {source}", what, fix) from error
        try:
            lock(self._lock)
            if _is_current(self._lock) and not _is_own(self._home):
                _copy(source, self._home, os.path.basename(self.path))
        except BlockingIOError:
            pass  # another process copies or uses it
        except BaseException:
            self.close()
            raise
        lock(self._lock, shared=True, wait=True)
        return _is_current(self._lock) and _is_own(self._home)


def remove_leftovers() -> None:
    """Remove this user's copies that no living process uses."""
    if not MEMORY.is_dir():
        return
    for path in MEMORY.glob(f"paceline-{os.getuid()}-*.lock"):
        try:
            descriptor = os.open(path, os.O_RDWR | CLOSED_BY_EXEC | NO_FOLLOW)
        except OSError:
            continue
        _remove_unless_used(path.with_suffix(""), descriptor)


def _is_current(descriptor: int) -> bool:
    return os.fstat(descriptor).st_nlink > 0  # the lock file still has its name


def _is_own(home: Path) -> bool:
    """Return whether the copy exists. ResourceError R107 if another user owns that name."""
    try:
        status = os.lstat(home)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        fix = "remove it, or set data.stage=none"
        raise ResourceError(107, str(home), "belongs to another user or is no folder", fix)
    return True


def _remove_unless_used(home: Path, descriptor: int) -> None:
    with suppress(BlockingIOError):  # another process uses it
        lock(descriptor)
        if _is_current(descriptor):
            shutil.rmtree(home, ignore_errors=True)
            shutil.rmtree(home.with_suffix(".part"), ignore_errors=True)
            home.with_suffix(".lock").unlink(missing_ok=True)
    os.close(descriptor)


def _copy(source: str, home: Path, name: str) -> None:
    # Copy under another name first, so that ``home`` is complete if it exists.
    where = f"data.stage = ram: {source}"
    fix = "set data.stage=none, or free memory"
    needed = sum(map(os.path.getsize, open_store.files_of(source)))
    spare = int(min(shutil.disk_usage(MEMORY).free, available_memory_bytes()) * SPARE)
    if needed > spare:
        what = f"{needed} bytes do not fit into memory, of which {spare} may be taken"
        raise ResourceError(107, where, what, fix)
    part = home.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(mode=0o700)
        if os.path.isdir(source):
            shutil.copytree(source, part / name, copy_function=shutil.copyfile)  # ours to write
        else:
            shutil.copyfile(source, part / name)
        part.rename(home)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        what = f"cannot be copied into memory ({error.strerror})"
        raise ResourceError(107, where, what, fix) from error


def drop_cached(paths: Sequence[str]) -> None:
    """Remove files from the page cache. ResourceError R107 if the system keeps them."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # the system drops only what is on the disk
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    share = cached_share(paths)
    if share is None or share > STAYS:
        kept = "an unknown share" if share is None else f"{share:.0%}"
        what = f"{kept} of it stays in memory in spite of POSIX_FADV_DONTNEED"
        fix = "use a local disk, end programs that read it, or set data.stage=none"
        raise ResourceError(107, f"data.stage = cold: {paths[0]}", what, fix)


def cached_share(paths: Sequence[str]) -> float | None:
    """Return the share (0 to 1) of the files' bytes in the page cache; None if it is unknown."""
    mincore = c_function("mincore")
    cached = total = 0
    for path in paths:
        if not os.path.getsize(path) or mincore is None:
            continue
        file = np.memmap(path, np.uint8, "r")  # mapped, but not read
        states = np.zeros(-(-file.size // mmap.PAGESIZE), np.uint8)
        address, size = ctypes.c_void_p(file.ctypes.data), ctypes.c_size_t(file.size)
        if mincore(address, size, ctypes.c_void_p(states.ctypes.data)) == 0:
            cached += int((states & 1).sum())
            total += len(states)
    return cached / total if total else None


@final
class ResidentStore(RecordStore):
    """A store of raw fields on ``device``. ConfigError C171, ResourceError R107 for no room."""

    has_columns = True

    def __init__(self, store: RecordStore, device: torch.device) -> None:
        self.store, self.device = store, device
        self._tensors: dict[str, Tensor] = {}
        encoded = [name for name, field in store.manifest.fields.items() if field.encoding != "raw"]
        if encoded:
            what = f"{encoded} is encoded or ragged; only plain arrays are kept on a device"
            fix = "pack images with pack.encode=raw, or set data.stage=ram"
            raise ConfigError(171, "data.stage = device", what, fix)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tensors": {}}

    def described(self) -> Manifest:
        return self.store.manifest

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        """Return tensors on the device. The first read copies the whole store there."""
        if not self._tensors:
            count = self.manifest.num_records
            try:
                for start in range(0, count, BLOCK_RECORDS):
                    stop = min(start + BLOCK_RECORDS, count)
                    for name, values in self.store.read(torch.arange(start, stop)).items():
                        if name not in self._tensors:
                            shape = (count, *values.shape[1:])
                            self._tensors[name] = values.new_empty(shape, device=self.device)
                        self._tensors[name][start:stop] = values.to(self.device)
            except (torch.OutOfMemoryError, MemoryError) as error:
                self._tensors = {}
                what = f"the set does not fit on {self.device}"
                fix = "set data.stage=ram or none"
                raise ResourceError(107, "data.stage = device", what, fix) from error
            self.store.close()
        there = indices.to(self.device, non_blocking=True)
        return {name: tensor.index_select(0, there) for name, tensor in self._tensors.items()}

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return self.store.damaged(indices, {name: values.cpu() for name, values in records.items()})

    def column(self, name: str) -> Any:
        return self.store.column(name)

    def lengths(self, name: str) -> Tensor:
        return self.store.lengths(name)

    def key(self, index: int) -> str:
        return self.store.key(index)

    def name(self, index: int) -> str:
        return self.store.name(index)

    def check(self) -> None:
        self.store.check()

    def close(self) -> None:
        self._tensors = {}
        self.store.close()


@final
class LockedRecords:
    """Reads records of a ``lockable`` store in page-locked memory, from which the GPU copies.

    CopyEngineError if the GPU cannot copy so, OSError if a file cannot be opened for writing.
    """

    def __init__(self, store: RecordStore, device: torch.device) -> None:
        self._store = store
        self._gathers: dict[str, Gather] = {}  # of addresses
        for name, field in store.manifest.fields.items():
            shape = tuple(size or 0 for size in field.shape)
            self._gathers[name] = Gather(None, 1, shape, file_store.torch_dtype(field))
        self._files = LockedFiles(store.paths, device)

    def __call__(self, indices: Tensor) -> Records:
        """Return records (int64 [B]): ``Pieces`` of large fields, tensors of labels and others."""
        places = self._store.places(indices)
        starts = self._files.starts[places.files]
        records: Records = {}
        for name, offsets in places.starts.items():
            gather = self._gathers[name]
            if gather.num_bytes < LEAST_BYTES or name == LABEL:
                records[name] = gather(starts + offsets)
            else:
                maps = self._files.maps
                records[name] = Pieces(starts + offsets, gather.shape, gather.dtype, maps)
        return records

    def close(self) -> None:
        """Unlock the memory. All copies have to be queued."""
        self._files.close()


def lockable(store: RecordStore) -> bool:
    """Return whether all fields of a store are raw, whole in its files, and some are large."""
    fields = store.manifest.fields
    if find("paceline_gather") is None or not store.manifest.num_records:
        return False
    is_raw = all(field.encoding == "raw" for field in fields.values())
    if not is_raw or max(map(file_store.num_bytes, fields.values()), default=0) < LEAST_BYTES:
        return False
    return store.places(torch.empty(0, dtype=torch.int64)).starts.keys() == fields.keys()
