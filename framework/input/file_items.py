"""Files that the user names or a folder holds, in the byte order of their names.

A walk through a folder gives regular files only: links are not followed, and pipes, sockets and
devices are never opened. A file or pattern that the user names may be a link.
"""

import glob
import os
import stat

from framework.errors import DataError
from framework.store.identity import unreadable
from framework.store.walk_tree import walk


def named_files(path: str, suffixes: tuple[str, ...] = ("",)) -> list[str]:
    """Return a file, all files under a folder, or those of a pattern (``*``, ``?``, ``**``).

    Raises:
        DataError: D101 if there is no file.
    """
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        names = [os.path.join(path, name) for name in walk(path, suffixes).names]
    else:
        names = sorted(filter(os.path.isfile, glob.glob(path, recursive=True)), key=os.fsencode)
    if not names:
        what = " ".join(f"no file {'or '.join(suffixes)} here".split())
        raise DataError(101, path, what, "give a file, a folder, or a pattern such as 'train-*'")
    return names


def read_file(path: str) -> bytes:
    """Return a file's bytes.

    Raises:
        DataError: D101 if the file cannot be read, or is a pipe or a device, which is not opened.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DataError(101, path, "not a regular file", "correct or remove it")
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise unreadable(path, error) from error


def read_part(path: str, start: int, size: int, name: str) -> bytes:
    """Return ``size`` bytes of a file from byte ``start``, which belong to the record ``name``.

    Raises:
        DataError: D101 if the file cannot be read, D166 if it ends too early.
    """
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(size)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) != size:
        what = f"truncated: {size} bytes wanted, have {len(data)}"
        raise DataError(166, name, what, "get the file again")
    return data
