"""Files as items: which there are, in the byte order of their names whatever the file system says, and their bytes.

A folder that is walked gives regular files only: symbolic links are not followed, and pipes, sockets and devices are never opened.
A file or pattern that the user names may be a link.
"""

import glob
import os
import stat
from typing import NamedTuple

from framework.errors import DataError
from framework.store.walk_tree import Walked, walk


class ListedFiles(NamedTuple):
    """``names``: relative to the folder, in byte order; any bytes a file system has (``surrogateescape``). ``left_out``: how many
    symbolic links and special files were passed over.
    """

    names: list[str]
    left_out: int

    @property
    def note(self) -> str:
        """What the manifest's ``source`` says of what was passed over."""
        return f" ({self.left_out} links and special files left out)" if self.left_out else ""


def find_files(root: str, suffixes: tuple[str, ...] = ("",)) -> ListedFiles:
    """The regular files anywhere under ``root`` whose lower-case names end in one of ``suffixes``. DataError D101."""
    return found_in(walk(root, suffixes))


def found_in(walked: Walked) -> ListedFiles:
    """Return the files of a walk, and how many links and special files it skipped."""
    return ListedFiles(walked.names, walked.links + walked.specials)


def named_files(path: str, suffixes: tuple[str, ...] = ("",)) -> list[str]:
    """The files ``path`` stands for, in byte order: a file, all files under a folder, or a pattern with ``*``, ``?`` and ``**``.

    DataError D101 where there is none.
    """
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        names = [os.path.join(path, name) for name in find_files(path, suffixes).names]
    else:
        names = sorted(filter(os.path.isfile, glob.glob(path, recursive=True)), key=os.fsencode)
    if not names:
        what = f"no file {'or '.join(suffixes) or ''} here".replace("  ", " ")
        raise DataError(101, path, what, "give a file, a folder, or a pattern such as 'train-*'")
    return names


def read_file(path: str) -> bytes:
    """The file's bytes. DataError D101 where it cannot be read or is a pipe or a device, which is not opened."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DataError(101, path, "not a regular file", "mend or remove it")
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        words = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(101, path, f"cannot be read ({words})", "mend or remove it") from error
