"""The one way a file is published: temporary name, flush, fsync, replace, fsync of the directory.

A reader sees the old file or the new one, never a part; after a crash or a full disk the old one is intact.
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

from framework.errors import ResourceError
from framework.system.signal_handlers import handled
from framework.system.stopping import NUMBERS, at_end

FULL = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
)  # what a disk, a quota or a limit says when there is no room
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


_reached: Callable[[str], None] | None = (
    None  # tests of faults put something here, in a process of their own
)


def reach(point: str) -> None:
    """A named point at which tests let a process die, or a disk fail. Does nothing else."""
    if _reached is not None:
        _reached(point)


_folders: set[Path] = set()  # that may hold temporary names if a signal ends this process


def tidied(folder: Path) -> None:
    """Have temporary files in ``folder``, of this process and of those it started, removed if a signal ends it."""
    at_end(_remove_own_leftovers, key=_remove_own_leftovers)
    _folders.add(folder.absolute())


def _remove_own_leftovers(_: object) -> None:
    for folder in _folders:
        with suppress(OSError):
            for name in os.listdir(folder):
                if f".tmp.{socket.gethostname()}.{os.getpid()}." in name or _is_left(name):
                    _remove(folder / name)


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that no other process of any host takes."""
    tidied(path.parent)
    return path.with_name(
        f"{path.name}.tmp.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
    )


@contextmanager
def publish(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary name to write to; on a clean exit it becomes ``path``, on an error it is removed.

    For writers that open the file themselves (h5py, lmdb, torch). Raises ResourceError R101 where the disk says no.
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
        if not error.errno or isinstance(
            error, FileNotFoundError
        ):  # not the disk's: a library's own OSError
            raise
        raise ResourceError(
            101, str(path), f"cannot write: {error.strerror}", "free space or choose another place"
        ) from error
    finally:
        with suppress(FileNotFoundError, NotADirectoryError):
            temporary.unlink()


def move(source: Path, target: Path) -> None:
    """Give ``source``, a file or a folder that the disk holds already, the name ``target``, durably.

    What stood there, folder or file, stays until the new one has its name, and is then removed. ResourceError R101.
    """
    try:
        if os.path.lexists(target) and (
            source.is_dir() or target.is_dir()
        ):  # what a plain rename does not replace
            old = temporary_name(target)
            if _exchange(source, target):
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
        raise ResourceError(
            101,
            str(target),
            f"cannot write: {error.strerror}",
            "free space or choose another place",
        ) from error


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names at once, so that there is never none. False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0


def remove_leftovers(path: Path) -> list[str]:
    """Remove what dead processes of this host left under temporary names of ``path`` or, ``path`` being a folder, inside it.

    Returns the names that were removed.
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
    """Whether a name is a temporary one of a process of this host that lives no more."""
    head, *ends = name.rsplit(".", 2)
    if ".tmp." not in head or len(ends) != 2 or not ends[0].isdecimal():
        return False
    return head.rsplit(".tmp.", 1)[1] == socket.gethostname() and not is_alive(int(ends[0]))


def is_alive(pid: int) -> bool:
    """Whether a process of this host has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
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
    """Signals wait until the block ends: for what must be done whole, such as a library's file that is being closed."""
    noted: list[int] = []
    try:
        with handled(NUMBERS, lambda number, _: noted.append(number)):
            yield
    finally:
        if noted:
            signal.raise_signal(noted[0])


def abandon(publishing: AbstractContextManager[Path]) -> None:
    """End a ``publish`` that was entered by hand without publishing: the temporary file is removed."""
    stop = GeneratorExit()
    publishing.__exit__(type(stop), stop, None)


@contextmanager
def open_durable(path: Path) -> Generator[IO[bytes], None, None]:
    """Open ``path`` for writing bytes; what is written is published when the block ends without an error."""
    with publish(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        reach("publish.opened")
        with os.fdopen(descriptor, "wb") as file:
            yield file


def write_text(path: Path, text: str) -> None:
    """Publish ``text`` as UTF-8."""
    with open_durable(path) as file:
        file.write(text.encode(errors="surrogateescape"))  # file names may be any bytes


def write_json(path: Path, value: Any) -> None:
    """Publish ``value`` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync(path: Path) -> None:
    """Have the disk hold ``path``: a file's content, a directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
