"""Publish files atomically and durably.

Every file is written under a temporary name, flushed, synced and renamed, and then its directory is
synced. A reader sees the old file or the new one, never a part. After a crash or on a full disk,
the old file is intact.
"""

import ctypes
import errno
import json
import os
import secrets
import shutil
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from framework.errors import ResourceError, escaped
from framework.system.stopping import NUMBERS, at_end, handled

# The errors of a full disk, a quota and a limit.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
AT_FDCWD = -100  # linux/fcntl.h
RENAME_EXCHANGE = 2  # linux/fs.h

# Tests of faults set this in a process of their own.
_reached: Callable[[str], None] | None = None
# Folders that may hold temporary files if a signal ends this process.
_folders: set[Path] = set()


def reach(point: str) -> None:
    """Mark a named point at which tests let a process die or a disk fail."""
    if _reached is not None:
        _reached(point)


def tidied(folder: Path) -> None:
    """Remove the temporary files in ``folder`` if a signal ends this process.

    That includes the files of processes that this one started.
    """
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

    On a clean exit the temporary file becomes ``path``. On an error it is removed. ResourceError
    R101 if the file cannot be written.
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

    An existing ``target`` stays until the new one has its name, and is then removed. ResourceError
    R101 if the name cannot be written.
    """
    try:
        # A plain rename does not replace a folder.
        if os.path.lexists(target) and (source.is_dir() or target.is_dir()):
            _replace(source, target)
        else:
            os.replace(source, target)
        sync(source.parent)
        sync(target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error


def _replace(source: Path, target: Path) -> None:
    """Give ``source`` the name of ``target``, then remove what had it."""
    old = temporary_name(target)
    if _exchange(source, target):
        os.rename(source, old)
    else:
        os.rename(target, old)
        os.rename(source, target)
    sync(target.parent)
    _remove(old)


def _unwritable(path: Path, error: OSError) -> ResourceError:
    what = f"cannot write: {error.strerror}"
    return ResourceError(101, str(path), what, "free space or choose another place")


def _exchange(path: Path, other: Path) -> bool:
    """Swap two names atomically. Return False if the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # neither Linux nor a recent C library
        return False
    names = (AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(other))
    return rename(*names, RENAME_EXCHANGE) == 0


def remove_leftovers(path: Path) -> list[str]:
    """Remove the temporary files of dead processes of this host, and return their names.

    These are temporary files of ``path`` and, if ``path`` is a folder, all temporary files inside.
    """
    removed: list[str] = []
    for folder, prefix in ((path.parent, f"{path.name}.tmp."), (path, "")):
        with suppress(FileNotFoundError, NotADirectoryError):
            removed += [
                name
                for name in os.listdir(folder)
                if name.startswith(prefix) and _is_left(name) and _remove(folder / name)
            ]
    return removed


def _is_left(name: str) -> bool:
    """Return whether a name is temporary and belongs to a dead process of this host."""
    head, *ends = name.rsplit(".", 2)
    if ".tmp." not in head or len(ends) != 2 or not ends[0].isdecimal():
        return False
    return head.rsplit(".tmp.", 1)[1] == socket.gethostname() and not is_alive(int(ends[0]))


def is_alive(pid: int) -> bool:
    """Return whether a process with this id runs on this host."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    except OverflowError:
        pass
    return True


def _remove(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return True


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
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        reach("publish.opened")
        with os.fdopen(descriptor, "wb") as file:
            yield file


def write_bytes(path: Path, data: bytes) -> None:
    """Publish ``data``."""
    with open_durable(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Publish ``text`` as UTF-8, without what a terminal would obey."""
    write_bytes(path, escaped(text).encode(errors="surrogateescape"))  # file names may be any bytes


def write_json(path: Path, value: Any) -> None:
    """Publish ``value`` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync(path: Path) -> None:
    """Put on disk the content of a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
