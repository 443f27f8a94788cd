"""Publish files atomically and durably, and lock them.

A file is written under a temporary name, synced and renamed, and its directory synced: readers see
the old file or the new one, also after a crash or on a full disk.
"""

import errno
import json
import math
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from framework.errors import PacelineError, ResourceError, escaped, say
from framework.system import portable
from framework.system.stopping import NUMBERS, at_end, handled, undone

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the errors of a full disk, a quota and a limit
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of a file system without locks
FLAGS = portable.NO_FOLLOW | portable.BYTES
AT_FDCWD = -100  # linux/fcntl.h
RENAME_EXCHANGE = 2  # linux/fs.h
PATIENCE_S = 1.0  # a killed process's children hold its lock until the kernel has ended them
RETRY_S = 0.05

_reached: Callable[[str], None] | None = None  # tests of faults set it in a process of their own
_folders: set[Path] = set()  # that may hold temporary files if a signal ends this process


def reach(point: str) -> None:
    """Mark a named point at which tests let a process die or a disk fail."""
    if _reached is not None:
        _reached(point)


def tidied(folder: Path) -> None:
    """Remove the temporary files in ``folder`` if a signal ends this process or its children."""
    at_end(_remove_own_leftovers, key=_remove_own_leftovers)
    _folders.add(folder.absolute())


def _remove_own_leftovers(_: object) -> None:
    for folder in _folders:
        with suppress(OSError):
            for name in os.listdir(folder):
                if f".tmp.{socket.gethostname()}.{os.getpid()}." in name or _is_left(name):
                    _remove(folder / name)


def temporary_name(path: Path) -> Path:
    """Return a name beside ``path`` that no other process of any host uses."""
    tidied(path.parent)
    owner = f"{socket.gethostname()}.{os.getpid()}"
    return path.with_name(f"{path.name}.tmp.{owner}.{secrets.token_hex(4)}")


@contextmanager
def publish(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary name to write to, for writers that open the file themselves.

    After the block it becomes ``path``; after an error it is removed. R101 if it cannot be written.
    """
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        reach("publish.written")
        sync(temporary)
        reach("publish.synced")
        os.replace(temporary, path)
        reach("publish.renamed")
        sync(path.parent)
        reach("publish.published")
    except OSError as error:
        # These are a library's own OSErrors.
        if not error.errno or isinstance(error, FileNotFoundError):
            raise
        raise _unwritable(path, error) from error
    finally:
        with suppress(FileNotFoundError, NotADirectoryError):
            temporary.unlink()


def move(source: Path, target: Path) -> None:
    """Rename ``source``, a synced file or folder, to ``target``, durably.

    An existing ``target`` stays until the new one has its name. R101 if it cannot be written.
    """
    try:
        # A plain rename does not replace a folder.
        if os.path.lexists(target) and (source.is_dir() or target.is_dir()):
            old = temporary_name(target)
            names = (AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target))
            rename = portable.c_function("renameat2")  # not everywhere
            if rename is not None and rename(*names, RENAME_EXCHANGE) == 0:
                os.rename(source, old)
            else:
                os.rename(target, old)
                os.rename(source, target)
            sync(target.parent)
            _remove(old)
        else:
            os.replace(source, target)
        sync(source.parent)
        sync(target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(path: Path, error: OSError) -> ResourceError:
    what = f"cannot write: {error.strerror}"
    return ResourceError(101, str(path), what, "free space or choose another place")


def remove_leftovers(path: Path) -> list[str]:
    """Remove what dead processes of this host have left of ``path`` and in it. Return the names."""
    removed: list[str] = []
    for folder, prefix in ((path.parent, f"{path.name}.tmp."), (path, "")):
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(folder):
                if name.startswith(prefix) and _is_left(name):
                    _remove(folder / name)
                    removed.append(name)
    return removed


def _is_left(name: str) -> bool:
    head, *ends = name.rsplit(".", 2)
    if ".tmp." not in head or len(ends) != 2 or not ends[0].isdecimal():
        return False
    return head.rsplit(".tmp.", 1)[1] == socket.gethostname() and not is_alive(int(ends[0]))


def is_alive(pid: int) -> bool:
    """Return whether a process with this id runs on this host."""
    if os.name == "nt":  # where ``os.kill`` ends any process
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    except OverflowError:
        pass
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def uninterrupted() -> Generator[None, None, None]:
    """Delay signals until the block ends, for example while a library closes its file."""
    noted: list[int] = []
    try:
        with handled(NUMBERS, lambda number, _: noted.append(number)):
            yield
    finally:
        if noted:
            signal.raise_signal(noted[0])


def abandon(publishing: AbstractContextManager[Path]) -> None:
    """End a ``publish`` that was entered by hand, and remove its temporary file."""
    stop = GeneratorExit()
    publishing.__exit__(type(stop), stop, None)


@contextmanager
def open_durable(path: Path) -> Generator[IO[bytes], None, None]:
    """Open ``path`` for writing bytes, and publish it when the block ends without an error."""
    with publish(path) as temporary:
        descriptor = os.open(temporary, FLAGS | os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        reach("publish.opened")
        with os.fdopen(descriptor, "wb") as file:
            yield file


def write_bytes(path: Path, data: bytes) -> None:
    with open_durable(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Publish ``text`` as UTF-8, without what a terminal would obey."""
    write_bytes(path, escaped(text).encode(errors="surrogateescape"))  # file names may be any bytes


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync(path: Path) -> None:
    """Put on disk the content of a file, or the names in a directory."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(
    path: Path,
    busy: Callable[[str], PacelineError | None],
    *,
    shared: bool = False,
    patience_s: float = PATIENCE_S,
    waits: Callable[[str], object] = lambda _: None,
    needed: bool = True,
) -> Generator[None, None, None]:
    """Hold the lock ``path`` (``flock``) inside the block. The last holder removes the file.

    The kernel frees the lock of a process that dies. If the lock is not free, ``waits`` is called
    with the owner's name, and after ``patience_s`` also ``busy``, which makes the error, or None to
    keep waiting. Several may hold a ``shared`` lock. R101 if the file cannot be locked; unless
    locks are ``needed``, nothing is held on a file system without them.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, shared, busy, patience_s, waits)
    except OSError as error:
        if error.errno in NO_LOCKS and not (needed and portable.has_locks()):
            path.unlink(missing_ok=True)
            if needed:
                _say_without_locks()
            yield
            return
        fix = "choose another place, one whose file system has locks"
        raise ResourceError(101, str(path), f"cannot be locked: {error.strerror}", fix) from error
    try:
        with suppress(OSError):  # a lock works on a full disk, too
            os.ftruncate(descriptor, 0)
            process = f"process {os.getpid()} on {socket.gethostname()}"
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, f"{process} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        with undone(lambda _: _unlink(path, descriptor)):
            yield
    finally:
        _unlink(path, descriptor)
        os.close(descriptor)


@cache
def _say_without_locks() -> None:
    what = "this system cannot lock files, so nothing stops a second command from writing there"
    say(f"note: {what}: start one at a time", sys.stderr)


def _unlink(path: Path, descriptor: int) -> None:
    with suppress(OSError):  # others still share the lock
        portable.lock(descriptor)
        path.unlink()


def _acquire(
    path: Path,
    shared: bool,
    busy: Callable[[str], PacelineError | None],
    patience_s: float,
    waits: Callable[[str], object],
) -> int:
    end = time.monotonic() + patience_s
    has_told = False
    while True:
        descriptor = os.open(path, FLAGS | os.O_RDWR | os.O_CREAT, 0o666)
        try:
            portable.lock(descriptor, shared=shared)
            # The last holder may have removed the file after we opened it.
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BlockingIOError as error:
            owner = portable.read_at(descriptor, 200, 0).decode(errors="replace").strip()
            owner = owner or "another process"
            if not has_told:
                has_told = True
                waits(owner)
            if time.monotonic() > end:
                end = math.inf
                if refusal := busy(owner):
                    os.close(descriptor)
                    raise refusal from error
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(RETRY_S)
