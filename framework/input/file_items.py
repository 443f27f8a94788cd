"""Files as items, in the byte order of their names, whatever the file system says.

A walk through a folder gives regular files only: links are not followed, and pipes, sockets and
devices are never opened. A file or pattern that the user names may be a link.
"""

import glob
import os
import stat
from typing import NamedTuple

from framework.errors import DataError
from framework.store.walk_tree import Walked, walk


class ListedFiles(NamedTuple):
    """Names of files, and the number of links and special files that were left out.

    Names are relative to the folder, and may hold any bytes (``surrogateescape``).
    """

    names: list[str]
    left_out: int

    @property
    def note(self) -> str:
        """A note on what was left out, for the manifest's ``source``."""
        return f" ({self.left_out} links and special files left out)" if self.left_out else ""


def find_files(root: str, suffixes: tuple[str, ...] = ("",)) -> ListedFiles:
    """Return the regular files anywhere under ``root`` with a suffix. DataError D101.

    Suffixes are compared with the names in lower case.
    """
    return found_in(walk(root, suffixes))


def found_in(walked: Walked) -> ListedFiles:
    """Return the files of a walk."""
    return ListedFiles(walked.names, walked.links + walked.specials)


def named_files(path: str, suffixes: tuple[str, ...] = ("",)) -> list[str]:
    """Return a file, all files under a folder, or those of a pattern (``*``, ``?``, ``**``).

    Raises:
        DataError: D101 if there is no file.

    """
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        names = [os.path.join(path, name) for name in find_files(path, suffixes).names]
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
            raise DataError(101, path, "not a regular file", "mend or remove it")
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        words = str(error)
        if isinstance(error, OSError) and error.strerror:
            words = error.strerror
        raise DataError(101, path, f"cannot be read ({words})", "mend or remove it") from error
