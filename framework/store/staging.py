"""A store copied into memory (``/dev/shm``) before training: shared by all ranks and runs of this user that want it, gone with the last.

Who uses a copy holds a lock on it. A lock dies with its process, however that ends, so the next run can tell what was left behind and
removes it.
"""

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import final

from framework.errors import ResourceError
from framework.measure.host import available_memory_bytes
from framework.store.identity import identify
from framework.system.stopping import at_end

MEMORY = Path("/dev/shm")  # noqa: S108  # names are the user's own, and opened without following links
SPARE = 0.9  # of the memory that is free may be taken


@final
class Staged:
    """The copy of the file or directory ``source``, at ``path``, until ``close``. ResourceError R107 where there is no room."""

    def __init__(self, source: str) -> None:
        remove_leftovers()
        key = hashlib.sha256(
            repr((os.path.realpath(source), *map(identify, files_of(source)))).encode()
        ).hexdigest()[:16]
        self._home = MEMORY / f"paceline-{os.getuid()}-{key}"
        self.path = str(self._home / os.path.basename(os.path.normpath(source)))
        self._lock = -1
        self._forget = at_end(lambda _: _remove_unless_used(self._home, self._lock))
        try:
            while not self._take(source):
                os.close(self._lock)  # another one's last user removed it meanwhile: once more
        except BaseException:
            self._forget()
            raise

    def _take(self, source: str) -> bool:
        """Share the copy, made here unless another one has made it or is at it. False where it was removed in between."""
        self._lock = _open_lock(self._home, source)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_current(self._lock, self._home) and not _is_own(self._home):
                _copy(source, self._home)
        except BlockingIOError:
            pass  # it is being copied, or in use
        except BaseException:
            self.close()
            raise
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        return _is_current(self._lock, self._home) and _is_own(self._home)

    def close(self) -> None:
        """Give the copy back; the last one removes it."""
        self._forget()
        _remove_unless_used(self._home, self._lock)


def remove_leftovers() -> None:
    """Remove this user's copies that no living process uses."""
    for lock in MEMORY.glob(f"paceline-{os.getuid()}-*.lock"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        _remove_unless_used(lock.with_suffix(""), descriptor)


def _lock_name(home: Path) -> Path:
    return home.with_name(home.name + ".lock")


def files_of(source: str) -> Iterator[str]:
    """The files of a store: one, or a directory of them."""
    if not os.path.isdir(source):
        yield source
    else:
        yield from (os.path.join(source, name) for name in sorted(os.listdir(source)))


def _open_lock(home: Path, source: str) -> int:
    try:
        return os.open(
            _lock_name(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        what = f"{_lock_name(home)} cannot be opened ({error.strerror})"
        raise ResourceError(
            107, f"data.stage = ram: {source}", what, "remove it, or set data.stage=none"
        ) from error


def _is_current(descriptor: int, home: Path) -> bool:
    """Whether the lock file still has its name, and was not made anew by another run."""
    with suppress(FileNotFoundError):
        return os.lstat(_lock_name(home)).st_ino == os.fstat(descriptor).st_ino
    return False


def _is_own(home: Path) -> bool:
    """Whether the copy is there. ResourceError R107 where somebody else has put something under its name."""
    try:
        found = os.lstat(home)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ResourceError(107, str(home), "is not ours", "remove it, or set data.stage=none")
    return True


def _remove_unless_used(home: Path, descriptor: int) -> None:
    with suppress(BlockingIOError):  # another one uses it
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_current(descriptor, home):
            shutil.rmtree(home, ignore_errors=True)
            shutil.rmtree(_partial(home), ignore_errors=True)
            with suppress(FileNotFoundError):
                _lock_name(home).unlink()
    os.close(descriptor)


def _partial(home: Path) -> Path:
    return home.with_name(home.name + ".part")


def _copy(source: str, home: Path) -> None:
    """Whole or not at all: made under another name."""
    files = list(files_of(source))
    wanted, free = sum(os.path.getsize(file) for file in files), int(_free_bytes() * SPARE)
    if wanted > free:
        what = f"{wanted} bytes do not fit into memory, of which {free} may be taken"
        raise ResourceError(
            107, f"data.stage = ram: {source}", what, "set data.stage=none, or free memory"
        )
    part = _partial(home)
    shutil.rmtree(part, ignore_errors=True)
    target = part / os.path.basename(os.path.normpath(source))
    try:
        target.parent.mkdir(mode=0o700)
        if os.path.isdir(source):
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        part.rename(home)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        what = f"cannot be copied into memory ({error.strerror})"
        raise ResourceError(
            107, f"data.stage = ram: {source}", what, "set data.stage=none, or free memory"
        ) from error


def _free_bytes() -> int:
    """Return what ``/dev/shm`` can take and the machine has, since its files are memory."""
    disk = os.statvfs(MEMORY)
    return min(disk.f_bavail * disk.f_frsize, available_memory_bytes())
