"""Tells files from others: while they are open, so that records are not mixed, and over runs."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256

import numpy as np

from framework.errors import DataError

PIECES = 256  # of files, read for a digest: 16 MiB, which take 20 ms from memory
PIECE_BYTES = 1 << 16

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


def sampled_digest(paths: Sequence[str], names: Iterable[str] = ()) -> str:
    """Return a SHA-256 that tells files from others without reading all of them, in hexadecimal.

    It is of all ``names``, and of the sizes and contents of evenly spread files: at most ``PIECES``
    pieces, which are everything if the files are small. Time and place of the files do not count. A
    file that cannot be read counts as empty.
    """
    digest = sha256("\0".join([str(len(paths)), *names]).encode(errors="surrogateescape"))
    numbers = np.linspace(0, len(paths) - 1, min(len(paths), PIECES)).astype(int)
    most = PIECES // max(1, len(numbers))  # pieces of a file
    for number in map(int, numbers):
        with suppress(OSError), open(paths[number], "rb") as file:
            size = os.fstat(file.fileno()).st_size
            count = min(most, -(-size // PIECE_BYTES))
            starts = np.linspace(0, max(0, size - PIECE_BYTES), count).astype(int)
            digest.update(size.to_bytes(8, "little"))
            for start in starts.tolist():
                digest.update(os.pread(file.fileno(), PIECE_BYTES, start))
    return digest.hexdigest()


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
    folder, name = os.path.split(path)
    close: list[str] = []
    with suppress(OSError):
        close = get_close_matches(name, os.listdir(folder or "."), n=1, cutoff=0.7)
    hint = f" (did you mean '{os.path.join(folder, close[0])}'?)" if close else ""
    return DataError(
        101, path, f"no such file{hint}", "correct the path; 'paceline pack' makes a store"
    )
