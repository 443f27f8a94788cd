"""Files as items: which there are, in the byte order of their names whatever the file system says, and their bytes.

A folder that is walked gives regular files only: symbolic links are not followed, and pipes, sockets and devices are never opened.
A file or pattern that the user names may be a link.
"""

import glob
import os
import stat
from typing import NamedTuple

from framework.errors import DataError


class Found(NamedTuple):
    """``names``: relative to the folder, in byte order; any bytes a file system has (``surrogateescape``). ``left_out``: how many
    symbolic links and special files were passed over.
    """

    names: list[str]
    left_out: int

    @property
    def note(self) -> str:
        """What the manifest's ``source`` says of what was passed over."""
        return f" ({self.left_out} links and special files left out)" if self.left_out else ""


def find_files(root: str, suffixes: tuple[str, ...] = ("",)) -> Found:
    """The regular files anywhere under ``root`` whose lower-case names end in one of ``suffixes``. DataError D101."""
    if not os.path.isdir(root):
        raise DataError(
            101,
            root or "path = ",
            "no such folder",
            "give the folder that holds the files: of a recipe source=FOLDER, of 'paceline pack' input.path=FOLDER",
        )
    names: list[str] = []
    left_out, pending = 0, [""]
    while pending:
        folder = pending.pop()
        for entry in _entries(root, folder):
            name = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                pending.append(name)
            elif not entry.is_file(follow_symlinks=False):
                left_out += 1
            elif entry.name.lower().endswith(suffixes):
                names.append(name)
    return Found(sorted(names, key=os.fsencode), left_out)


def _entries(root: str, folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            return list(entries)
    except OSError as error:
        where = os.path.join(root, folder)
        raise DataError(101, where, f"cannot be read ({error.strerror})", "give read permission, or remove it") from error


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
