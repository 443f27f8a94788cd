"""Whether a file is still the one that was opened: a store packed anew under the same name must not be mixed with the old one."""

import os
from difflib import get_close_matches

from framework.errors import DataError

Identity = tuple[int, int, int]  # inode, bytes, nanoseconds of the last change


def nearest(path: str) -> str:
    """`` (did you mean 'x'?)`` with a file there that is named nearly so, or nothing."""
    folder, name = os.path.split(path)
    try:
        close = get_close_matches(name, os.listdir(folder or "."), n=1, cutoff=0.7)
    except OSError:
        return ""
    return f" (did you mean '{os.path.join(folder, close[0])}'?)" if close else ""


def identify(path: str, before: Identity | None = None) -> Identity:
    """What ``path`` is now. DataError D117 where it was ``before`` and is not any more, D101 where it is gone."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(
            101, path, f"no such file{nearest(path)}", "give the path of a packed store"
        ) from error
    now = (found.st_ino, found.st_size, found.st_mtime_ns)
    if before is not None and now != before:
        raise DataError(
            117,
            path,
            "was replaced or rewritten since it was opened",
            "start again; pack under another name next time",
        )
    return now
