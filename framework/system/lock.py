"""A lock file that is held while its owner lives, and that names its owner."""

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

# The children of a killed process hold its lock until the kernel has ended them, too.
PATIENCE_S = 1.0
RETRY_S = 0.05
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of a file system without locks

Busy = Callable[[str], PacelineError | None]


@contextmanager
def locked(
    path: Path,
    busy: Busy,
    *,
    shared: bool = False,
    patience_s: float = PATIENCE_S,
    waits: Callable[[str], object] = lambda _: None,
    needed: bool = True,
) -> Generator[None, None, None]:
    """Hold the lock ``path`` (``flock``) inside the block. The last holder removes the file.

    The kernel frees the lock of a process that dies.

    Args:
        path: The lock file. ResourceError R101 if it cannot be locked.
        busy: Makes the error from the owner's name; None to keep waiting.
        shared: Whether others that also share the lock may hold it at the same time.
        patience_s: How long to wait before ``busy`` is called.
        waits: Called with the owner's name if the lock is not free at once.
        needed: Whether a file system without locks is an error. If not, nothing is held there.
    """
    kind = fcntl.LOCK_EX
    if shared:
        kind = fcntl.LOCK_SH
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, kind, busy, patience_s, waits)
    except OSError as error:
        if error.errno in NO_LOCKS and not needed:
            path.unlink(missing_ok=True)
            yield
            return
        fix = "choose another place, one whose file system has locks"
        raise ResourceError(101, str(path), f"cannot be locked: {error.strerror}", fix) from error
    try:
        with suppress(OSError):  # a lock works on a full disk, too
            os.ftruncate(descriptor, 0)
            process = f"process {os.getpid()} on {socket.gethostname()}"
            os.pwrite(descriptor, f"{process} since {time.strftime('%F %T')}\n".encode(), 0)
        with undone(lambda _: _remove(path, descriptor)):
            yield
    finally:
        _remove(path, descriptor)
        os.close(descriptor)


def _remove(path: Path, descriptor: int) -> None:
    with suppress(OSError):  # others still share the lock
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def _acquire(
    path: Path, kind: int, busy: Busy, patience_s: float, waits: Callable[[str], object]
) -> int:
    end = time.monotonic() + patience_s
    has_told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            # The last holder may have removed the file after we opened it.
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BlockingIOError as error:
            owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            if not has_told:
                has_told = True
                waits(owner or "another process")
            if time.monotonic() > end:
                end = math.inf
                refusal = busy(owner or "another process")
                if refusal is not None:
                    os.close(descriptor)
                    raise refusal from error
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(RETRY_S)
