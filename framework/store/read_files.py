"""Reads whole files, some at a time, so that the disk always has more than one request."""

import os
import resource
import stat
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import final

from framework.contracts.records import RecordInput, item_files_of
from framework.errors import DataError
from framework.store.identity import unreadable

# Files of a thread that are open at once. 32 would be a little faster, but a process may usually
# open 1,024, and may have a hundred threads.
AT_ONCE = 8
ASKED_BYTES = 1 << 20  # of each file; the system reads ahead in longer ones
MOST_BYTES = 64 << 20  # of a call: pages that come too early may be dropped before use


def read_files(paths: Sequence[str], seconds: "memoryview[float] | None" = None) -> list[bytes]:
    """Return the content of each file.

    Files that are not in memory are asked for before the first of them is read: with one request at
    a time, a disk reads small files a quarter as fast (benchmarks/README.md).

    Args:
        paths: The files.
        seconds: What opening and reading each file took is added here: float64 [files].

    Raises:
        DataError: D101 if a file cannot be read.
    """
    contents: list[bytes] = []
    for first in range(0, len(paths), AT_ONCE):
        descriptors: list[int] = []
        path, last = "", perf_counter()
        try:
            for place, path in enumerate(paths[first : first + AT_ONCE], first):
                descriptors.append(os.open(path, os.O_RDONLY))
                _ask(descriptors[-1])
                last = _add(seconds, place, last)
            for place, descriptor in enumerate(descriptors, first):
                path = paths[place]
                contents.append(read_all(descriptor))
                last = _add(seconds, place, last)
        except OSError as error:
            raise unreadable(path, error) from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    return contents


def _add(seconds: "memoryview[float] | None", place: int, since: float) -> float:
    """Add the time since a moment, and return the present moment."""
    if seconds is None:
        return since
    now = perf_counter()
    seconds[place] += now - since
    return now


def read_all(descriptor: int) -> bytes:
    """Return the content of an open file."""
    size = os.fstat(descriptor).st_size
    data = os.read(descriptor, size + 1)  # one byte more than there is, to see the end
    if len(data) == size:
        return data
    parts = [data]
    while parts[-1]:  # it grows, has no size, or is longer than a call reads
        parts.append(os.read(descriptor, 1 << 20))
    return b"".join(parts)


def _ask(descriptor: int) -> None:
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # a pipe, say, from which nothing can be read ahead
            os.posix_fadvise(descriptor, 0, ASKED_BYTES, os.POSIX_FADV_WILLNEED)


def ask_item_files(source: RecordInput, items: range) -> None:
    """Have the system read the files of items into memory, and return before it has.

    Nothing is done unless each item has files of its own. Errors are left to whoever reads them.
    """
    with suppress(DataError):  # a path that the input does not allow
        ends = [set(item_files_of(source, item)) for item in (items[0], items[-1])]
        if ends[0] == ends[1]:  # one file holds many items, which are not worth listing
            return
        paths = dict.fromkeys(path for item in items for path in item_files_of(source, item))
        asked = 0
        for path in paths if len(paths) >= len(items) else ():
            with suppress(OSError, ValueError):  # ValueError: a zero byte in the name
                status = os.stat(path)
                if asked > MOST_BYTES:
                    return
                if stat.S_ISREG(status.st_mode):  # a pipe or a device is not opened
                    descriptor = os.open(path, os.O_RDONLY)
                    _ask(descriptor)
                    os.close(descriptor)
                    asked += min(status.st_size, ASKED_BYTES)


@final
class DiskReads:
    """Knows whether this process has read files from a disk lately."""

    def __init__(self) -> None:
        self._blocks = 0

    def were_made(self, num_files: int) -> bool:
        """Return whether files come from a disk, of which ``num_files`` were read since last time.

        They do if the system has read at least 512 bytes for each. A file that is not in memory
        takes at least 4 kB, and a process also reads a few pages for other reasons.
        """
        blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        before, self._blocks = self._blocks, blocks
        return blocks - before >= num_files
