"""The content of files that inputs read. Pipes, sockets and devices are never opened."""

import os
import stat

from framework.errors import DataError
from framework.store.identity import unreadable
from framework.store.read_files import read_all


def read_file(path: str) -> bytes:
    """Return a file's bytes.

    Raises:
        DataError: D101 if the file cannot be read, or is a pipe or a device, which is not opened.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DataError(101, path, "not a regular file", "correct or remove it")
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return read_all(descriptor)
        finally:
            os.close(descriptor)
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
