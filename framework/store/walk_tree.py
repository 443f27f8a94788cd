"""Walks folders, for every reader alike.

Only regular files count. Pipes, sockets and devices are not opened. Symbolic links are skipped and
counted, except those that stay under a root that the user names.
A file or pattern that the user names may be a link.
"""

import glob
import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from framework.errors import DataError
from framework.store.identity import unreadable

MOST_ENDINGS = 5  # that a note names


class Walked(NamedTuple):
    """The content of a folder."""

    root: str
    names: list[str]  # regular files, relative to the root, in byte order (``surrogateescape``)
    folders: list[str]  # directly in the root, in byte order
    links: int = 0  # skipped symbolic links
    specials: int = 0  # skipped pipes, sockets and devices
    follow_links: str | None = None  # the root that links had to stay under; None: all skipped
    others: Mapping[str, int] = MappingProxyType({})  # skipped files of other endings: how many
    hidden: int = 0  # skipped files and folders whose names begin with a dot

    def notes(self, key: str) -> tuple[str, ...]:
        """Say what was skipped, if anything. ``key`` is the option that follows links."""
        if not (files := self._files_left_out()):
            return self.link_notes(key)
        return (f"{self.root}: {files}", *self.link_notes(key))

    def link_notes(self, key: str) -> tuple[str, ...]:
        """Say how many links were skipped, if any, and that the option ``key`` follows them."""
        if not self.links:
            return ()
        why = f"; {key}=ROOT follows those that stay under the folder ROOT"
        if self.follow_links is not None:
            why = f": no new file or folder under {key} = {self.follow_links}"
        return (f"{self.root}: {self._skipped()}{why}",)

    @property
    def left_out(self) -> str:
        """A note on what was skipped, for a manifest's ``source``."""
        count = self.links + self.specials
        return f" ({count} links and special files left out)" if count else ""

    def nothing(self, what: str, fix: str, key: str) -> DataError:
        """Return the error for a folder without files: D191 if links were skipped, else D110."""
        if not self.links:
            if files := self._files_left_out():
                what += f" ({files})"
            return DataError(110, self.root, what, fix)
        fix = f"name the folder that the links stay under: {key}=ROOT"
        if self.follow_links is not None:
            fix = f"name a folder above all targets, instead of {key}={self.follow_links}"
        return DataError(191, self.root, f"{what}, and {self._skipped()}", fix)

    def _files_left_out(self) -> str:
        kinds = sorted(self.others.items(), key=lambda kind: (-kind[1], kind[0]))
        parts = [f"{count} {ending}" for ending, count in kinds[:MOST_ENDINGS]]
        if rest := sum(count for _, count in kinds[MOST_ENDINGS:]):
            parts.append(f"{rest} with other endings")
        if self.hidden:
            parts.append(f"{self.hidden} hidden")
        return f"left out: {', '.join(parts)}" if parts else ""

    def _skipped(self) -> str:
        count = "1 symbolic link was" if self.links == 1 else f"{self.links} symbolic links were"
        return f"{count} skipped"


def walk(
    root: str,
    suffixes: Sequence[str] = ("",),
    follow_links: str | None = None,
    hidden: bool = True,
) -> Walked:
    """Find the regular files under ``root`` whose lower-case names end in one of ``suffixes``.

    Args:
        root: a folder, or a link to one.
        suffixes: in lower case; ``("",)`` for all files.
        follow_links: a folder; links whose real target lies under it are followed. Each folder is
            walked once, so that circles end. None: no link is followed.
        hidden: whether names that begin with a dot count. Programs keep copies under such names.

    Raises:
        DataError: D101 if a folder is missing or cannot be read.
    """
    if not os.path.isdir(root):
        fix = "correct the path (source, data.train or input.path)"
        raise DataError(101, root or "path = ", "no such folder", fix)
    if follow_links is not None and not os.path.isdir(follow_links):
        fix = "give the folder that the links' targets lie under"
        raise DataError(101, f"follow_links = {follow_links}", "no such folder", fix)
    allowed = follow_links and os.path.realpath(follow_links)
    names: list[str] = []
    folders: list[str] = []
    links: list[str] = []  # are followed after all real folders, which they must not replace
    round_of_links: list[str] = []
    counts: Counter[str] = Counter()
    others: Counter[str] = Counter()
    visited: set[str] = set()  # real paths of folders
    pending = [""]

    def note(name: str, is_folder: bool) -> None:
        if is_folder:
            pending.append(name)
            if os.sep not in name:
                folders.append(name)
        elif name.lower().endswith(tuple(suffixes)):
            names.append(name)
        else:
            others[os.path.splitext(name)[1].lower() or "without an ending"] += 1

    while pending or ((links or round_of_links) and allowed is not None):
        if not pending:
            if not round_of_links:
                round_of_links = sorted(links, key=os.fsencode, reverse=True)
                links = []
            name = round_of_links.pop()
            target, mode = _target(os.path.join(root, name))
            is_inside = Path(target).is_relative_to(allowed or "")
            is_folder = stat.S_ISDIR(mode)
            is_new = stat.S_ISREG(mode) or (is_folder and target not in visited)
            if is_inside and is_new:
                note(name, is_folder)
            else:
                counts["links"] += 1
            continue
        folder = pending.pop()
        path = os.path.join(root, folder)
        if allowed is not None:
            real = os.path.realpath(path)
            if real in visited:  # a link led above a folder that was walked
                continue
            visited.add(real)
        try:
            with os.scandir(path) as listed:
                entries = list(listed)
        except OSError as error:
            raise unreadable(path, error) from error
        for entry in entries:
            name = os.path.join(folder, entry.name)
            if entry.name.startswith(".") and not hidden:
                counts["hidden"] += 1
            elif entry.is_symlink():
                links.append(name)
            elif entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
                note(name, entry.is_dir(follow_symlinks=False))
            else:
                counts["specials"] += 1
    names.sort(key=os.fsencode)
    folders.sort(key=os.fsencode)
    skipped = counts["links"] + len(links), counts["specials"]
    return Walked(root, names, folders, *skipped, follow_links, others, counts["hidden"])


def _target(link: str) -> tuple[str, int]:
    """Return the file or folder that a link leads to, and its mode; 0: nowhere, or in a circle."""
    with suppress(OSError, ValueError):
        target = os.path.realpath(link, strict=True)
        return target, os.stat(target).st_mode
    return "", 0


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
        what = " ".join(f"no file {' or '.join(suffixes)} here".split())
        raise DataError(101, path, what, "give a file, a folder, or a pattern such as 'train-*'")
    return names
