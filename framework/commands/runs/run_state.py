"""Whether a run is running, and how it ended."""

import fcntl
import os
import re
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED
from framework.system.json_values import number, shown
from framework.system.run_dir import ENDED

RUNNING, FINISHED, INTERRUPTED = "running", "finished", "interrupted"
FAILED, KILLED, DAMAGED = "failed", "killed", "damaged"
# A run on another host may hold a lock that is not seen here. If it wrote within this time, it is
# taken to be running.
RECENT_S = 3600.0
LOCK = "run.lock"
MOST_CODES = 256  # exit codes of a process


class RunState(NamedTuple):
    """How a run is doing."""

    status: str
    code: int | None = None  # the exit code
    reason: str = ""  # why it failed, or who is running it


def state_of(
    path: Path, facts: Mapping[str, Any], summary: Mapping[str, Any], ended: Mapping[str, Any]
) -> RunState:
    """Return the state of a run directory, from its lock and the objects in its files."""
    owner = running_by(path)
    if owner:
        return RunState(RUNNING, None, owner)
    code = number(ended.get("code"))
    damaged = ""
    if not facts:
        damaged = "run.json cannot be read"
    elif code is None and os.path.lexists(path / ENDED):
        damaged = "exit.json cannot be read"
    elif code == 0 and not summary:
        damaged = "summary.json cannot be read"
    if damaged:
        return RunState(DAMAGED, None, damaged)
    if code is None or not 0 <= code < MOST_CODES:
        return RunState(KILLED, None, "its end was not recorded")
    status = FAILED
    if code == 0:
        status = FINISHED
    elif code in (EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED):
        status = INTERRUPTED
    return RunState(status, int(code), shown(ended.get("reason", "")))


def running_by(path: Path) -> str:
    """Return which process is running a run, or "" if none is.

    A lock that is held says so. A lock that was left behind by another host, and a directory
    without a lock and an end, count if the run has written within the last hour: not every shared
    folder passes on the locks of other hosts.
    """
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        if not os.path.lexists(path / ENDED) and wrote_recently(path):
            return "a process that cannot be seen from here"
        return ""
    except OSError:  # a link or a folder is no lock of ours
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        owner = shown(os.read(descriptor, 200).decode(errors="replace"))
        if not _is_free(descriptor):
            return owner or "another process"
    finally:
        os.close(descriptor)
    host = re.fullmatch(r"process \d+ on (\S+) since .*", owner)
    is_foreign = host is not None and host[1] != socket.gethostname()
    return owner if is_foreign and wrote_recently(path) else ""


def _is_free(descriptor: int) -> bool:
    """Return whether nobody holds a lock. On a file system without locks, nobody does."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def wrote_recently(path: Path) -> bool:
    """Return whether a run has written to one of its files within the last hour."""
    latest = 0.0
    for folder in (path, path / "checkpoints"):
        with suppress(OSError):
            for entry in os.scandir(folder):
                with suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        latest = max(latest, entry.stat(follow_symlinks=False).st_mtime)
    return time.time() - latest < RECENT_S
