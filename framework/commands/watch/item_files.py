"""Which files items are made from, and whether one of them has changed since.

Python reports each file that it opens, and each folder that it lists, to an audit hook. Libraries
in C do not report theirs. Two kinds of these are noted too: files that stay open, and files that
the state of a Dataset names.
"""

import errno
import inspect
import json
import os
import pickle
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import IO, Any, final

import numpy as np
from torch import Tensor

from framework.measure.host import files_being_read

EVENTS = ("open", "os.listdir", "os.scandir")
WRITES = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND  # flags of files that are no source
SYSTEM = ("/proc/", "/sys/")  # their times change at every look
IMPORTER = "<frozen importlib"
WRITTEN = "written"  # instead of a stamp
MISSING = "missing"

_noting: list["ItemFiles"] = []
_hooks: list[Any] = []  # the audit hook, once it is installed; Python cannot remove it


@final
class ItemFiles:
    """The files that items are made from, as one process sees them."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, bool]] = set()
        self._lines: list[str] = []  # that are not in a list yet

    @contextmanager
    def noted(self) -> Generator[None]:
        """Note the files that Python opens, in any thread, until the block ends."""
        if not _hooks:
            _hooks.append(_note_event)
            sys.addaudithook(_note_event)
        _noting.append(self)
        try:
            yield
        finally:
            _noting.remove(self)

    def note_named(self, dataset: Any) -> None:
        """Note the files that are named by the state of a Dataset."""
        for name in _names(dataset):
            if os.path.isfile(name):
                self.note(name)

    def note_open(self) -> None:
        """Note the files that this process has open for reading alone, without its own input."""
        for path in files_being_read():
            self.note(path)

    def note(self, path: str, is_written: bool = False) -> None:
        """Note the stamp of a file, or that it is written, unless that was done before."""
        if path.startswith(SYSTEM) or (path, is_written) in self._seen:
            return
        self._seen.add((path, is_written))
        stamp = WRITTEN if is_written else _stamp_of(path)
        if stamp:
            self._lines.append(f"{json.dumps([path, stamp])}\n")

    def write(self, path: Path) -> None:
        """Append the new files to a list, which several processes may share.

        Raises:
            OSError: The list is not there any more, or the disk is full.
        """
        num_lines = len(self._lines)
        if num_lines:
            lines = "".join(self._lines[:num_lines]).encode()
            with open(path, "ab", buffering=0) as file:  # so that lines stay whole
                if file.write(lines) < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            del self._lines[:num_lines]  # threads may have added others


def source_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a list without intermediate files, which were written or are removed.

    Raises:
        ValueError: It is damaged.
    """
    written = {name for _, name, stamp in _entries(path) if stamp == WRITTEN}
    for line, name, stamp in _entries(path):
        if name not in written and (stamp == MISSING or os.path.lexists(name)):
            yield line


def compared_files(path: Path) -> tuple[int, str]:
    """Return the number of files in a list, and a file that has changed since, or "".

    Raises:
        OSError: There is no list.
        ValueError: It is damaged.
    """
    num_files = 0
    for _, name, stamp in _entries(path):
        if _stamp_of(name) != stamp:
            return num_files, name
        num_files += 1
    return num_files, ""


def _entries(path: Path) -> Iterator[tuple[bytes, str, str]]:
    """Yield the lines of a list, each with its file and its stamp."""
    with open(path, "rb") as lines:
        for line in lines:
            name, stamp = json.loads(line)
            yield line, name, stamp


def _stamp_of(path: str) -> str:
    """Return the size and the times of change of a file or folder, and "" for a device."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return MISSING
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _note_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what an audit event opens. An import opens code, which is no source of items."""
    if not _noting or event not in EVENTS:
        return
    frame = inspect.currentframe()
    caller = frame and frame.f_back
    if caller is not None and caller.f_code.co_filename.startswith(IMPORTER):
        return
    try:
        path = "." if arguments[0] is None else os.fsdecode(arguments[0])
    except TypeError:  # the number of an open file
        return
    is_written = event == "open" and bool(arguments[2] & WRITES)
    for files in tuple(_noting):
        files.note(path, is_written)


def _names(dataset: Any) -> set[str]:
    with open(os.devnull, "wb") as nothing:
        pickler = _Names(nothing, 5)
        with suppress(Exception):  # a user's Dataset may do anything
            pickler.dump(dataset)
    return pickler.names


@final
class _Names(pickle.Pickler):
    """A pickler that keeps nothing but the texts and the paths in a state."""

    def __init__(self, file: IO[bytes], protocol: int) -> None:
        super().__init__(file, protocol)
        self.names: set[str] = set()

    def persistent_id(self, obj: Any) -> Any:
        """Return a number for what need not be pickled: large data without texts."""
        if isinstance(obj, str | PurePath):
            self.names.add(str(obj))
        elif isinstance(obj, np.ndarray) and obj.dtype.kind != "O":
            if obj.dtype.kind == "U":
                self.names.update(obj.ravel().tolist())
            return 0
        return 0 if isinstance(obj, Tensor) else None
