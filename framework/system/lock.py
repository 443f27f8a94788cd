"""One at a time: a file that is locked while its holder lives, and says who that is."""

import errno
import fcntl
import math
import os
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from framework.errors import PacelineError, ResourceError
from framework.system.stopping import undone

PATIENCE_S = 1.0  # the children of a process that was killed hold its lock until the kernel has ended them too
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems without
RETRY_S = 0.05


@contextmanager
def locked(
    path: Path,
    busy: Callable[[str], PacelineError | None],
    *,
    shared: bool = False,
    patience_s: float = PATIENCE_S,
    needed: bool = True,
) -> Generator[None, None, None]:
    """Hold the lock ``path`` (``flock``): alone, or ``shared`` with others who share it. The file is gone when nobody holds it.

    A dead holder's lock is free: the kernel sees to that. Who has waited ``patience_s`` for a living one raises ``busy`` of its name, or, where
    that is None, waits on. Where there are no locks, ResourceError R101, or nothing is held, if it is not ``needed``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, busy, patience_s)
    except OSError as error:
        if error.errno in NO_LOCKS and not needed:
            path.unlink(missing_ok=True)
            yield
            return
        fix = "choose another place, one whose file system has locks"
        raise ResourceError(101, str(path), f"cannot be locked: {error.strerror}", fix) from error
    try:
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(descriptor, 0)
            owner = (
                f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}"
            )
            os.pwrite(descriptor, f"{owner}\n".encode(), 0)
        with undone(lambda _: _remove(path, descriptor)):
            yield
    finally:
        _remove(path, descriptor)
        os.close(descriptor)


def _remove(path: Path, descriptor: int) -> None:
    with suppress(OSError):  # others share it: the last one removes the file
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def _acquire(
    path: Path, kind: int, busy: Callable[[str], PacelineError | None], patience_s: float
) -> int:
    end = time.monotonic() + patience_s
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if os.fstat(
                descriptor
            ).st_nlink:  # not removed by the one who held it when we opened it
                return descriptor
        except BlockingIOError as error:
            holder = (
                os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            )
            if time.monotonic() > end:
                end = math.inf
                if (refused := busy(holder)) is not None:
                    os.close(descriptor)
                    raise refused from error
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(RETRY_S)
