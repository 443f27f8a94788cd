"""Detects that a file was replaced while it was open: old and new records must not be mixed."""

import os
from difflib import get_close_matches

from framework.errors import DataError

Identity = tuple[int, int, int]  # inode, bytes, nanoseconds of the last change


def identify(path: str, before: Identity | None = None) -> Identity:
    """Return the identity of a file.

    Raises:
        DataError: D101 if the file is missing or cannot be read; D117 if its identity was not
            ``before``.
    """
    try:
        status = os.stat(path)
    except PermissionError as error:
        raise unreadable(path, error) from error
    except OSError as error:
        raise _missing(path) from error
    now = (status.st_ino, status.st_size, status.st_mtime_ns)
    if before is not None and now != before:
        fix = "start again; pack under another name next time"
        raise DataError(117, path, "was replaced or rewritten since it was opened", fix)
    return now


def read_head(path: str, num_bytes: int) -> bytes:
    """Return the first bytes of a regular file. DataError D101."""
    check_exists(path)
    try:
        with open(path, "rb") as file:
            return file.read(num_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


def check_exists(path: str) -> None:
    """Raise DataError D101 if ``path`` is no regular file."""
    if not os.path.isfile(path):
        raise _missing(path)


def unreadable(path: str, error: Exception) -> DataError:
    """Return the error D101 for a file or folder that the system does not let us read."""
    words = error.strerror if isinstance(error, OSError) else error
    fix = "give read permission, or correct or remove it"
    return DataError(101, path, f"cannot be read ({words})", fix)


def _missing(path: str) -> DataError:
    fix = "correct the path; 'paceline pack' makes a store"
    return DataError(101, path, f"no such file{_nearest(path)}", fix)


def _nearest(path: str) -> str:
    """Return a hint like `` (did you mean 'x'?)`` if a file has a similar name."""
    folder, name = os.path.split(path)
    try:
        close = get_close_matches(name, os.listdir(folder or "."), n=1, cutoff=0.7)
    except OSError:
        return ""
    if not close:
        return ""
    return f" (did you mean '{os.path.join(folder, close[0])}'?)"
