"""Files and folders of the user: their identity, their names, and reading many files at once."""

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from heapq import heappop, heappush
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, final

import numpy as np

from framework.contracts.records import RecordInput, input_traits
from framework.errors import DataError, listed
from framework.media.sound_video import SOUNDS
from framework.system.portable import own_usage, read_at

PARTS = ".parts"  # the ending of a folder that packing is still writing
SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")  # of images
FILES = (*SUFFIXES, *SOUNDS, ".npy")  # endings of the files that a column of paths may name
PIECES = 256  # that a digest reads: 16 MiB, which take 20 ms if they are in memory
PIECE_BYTES = 1 << 16
# Files of a thread that are open at once. 32 would be a little faster, but a process may usually
# open 1,024, and may have a hundred threads.
AT_ONCE = 8
ASKED_BYTES = 1 << 20  # of each file; the system reads ahead in longer ones
MOST_BYTES = 64 << 20  # of a call: the system may drop pages again that it reads too early

Identity = tuple[int, int, int]  # inode, bytes, nanoseconds of the last change


def identify(path: str, before: Identity | None = None) -> Identity:
    """Return the identity of a file. DataError D101, D117 if it was not ``before``."""
    try:
        status = os.stat(path)
    except PermissionError as error:
        raise unreadable(path, error) from error
    except OSError as error:
        raise missing(path) from error
    now = (status.st_ino, status.st_size, status.st_mtime_ns)
    if before is not None and now != before:
        fix = "start again; pack under another name next time"
        raise DataError(117, path, "was replaced or rewritten since it was opened", fix)
    return now


def sampled_digest(paths: Sequence[str], names: Iterable[str] = ()) -> str:
    """Return a SHA-256 of a sample of the files' contents, in hexadecimal.

    It covers all ``names``, and the sizes and at most ``PIECES`` pieces of evenly spread files, but
    not their times and folders. A file that cannot be read counts as empty.
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
                digest.update(read_at(file.fileno(), PIECE_BYTES, start))
    return digest.hexdigest()


def read_head(path: str, num_bytes: int) -> bytes:
    """Return the first bytes of a regular file. DataError D101."""
    if not os.path.isfile(path):
        raise missing(path)
    try:
        with open(path, "rb") as file:
            return file.read(num_bytes)
    except OSError as error:
        raise unreadable(path, error) from error


def missing(path: str) -> DataError:
    """Return the error D101 for a path that is no regular file, with the closest name."""
    folder, name = os.path.split(path)
    what = "no such file"
    with suppress(OSError):
        for close in get_close_matches(name, os.listdir(folder or "."), n=1, cutoff=0.7):
            what += f" (did you mean '{os.path.join(folder, close)}'?)"
    return DataError(101, path, what, "correct the path; 'paceline pack' makes a store")


def unreadable(path: str, error: Exception) -> DataError:
    """Return the error D101 for a file or folder that the system does not let us read."""
    words = error.strerror if isinstance(error, OSError) else error
    fix = "give read permission, or correct or remove it"
    return DataError(101, path, f"cannot be read ({words})", fix)


class Walked(NamedTuple):
    """The content of a folder."""

    root: str
    names: list[str]  # regular files, relative to the root, in byte order (``surrogateescape``)
    folders: list[str]  # directly in the root, in byte order
    links: int  # skipped symbolic links
    specials: int  # skipped pipes, sockets and devices
    follow_links: str | None  # the root that links had to stay under; None: all skipped
    others: Mapping[str, int]  # skipped files of other endings: how many
    hidden: int  # skipped files and folders whose names begin with a dot

    def notes(self, key: str) -> tuple[str, ...]:
        """Say what was skipped, if anything. ``key`` is the option that follows links."""
        skipped = self._files_left_out
        return (*([f"{self.root}: {skipped}"] if skipped else ()), *self.link_notes(key))

    def link_notes(self, key: str) -> tuple[str, ...]:
        """Say how many links were skipped, if any, and that the option ``key`` follows them."""
        if not self.links:
            return ()
        why = f"; {key}=ROOT follows those that stay under the folder ROOT"
        if self.follow_links is not None:
            why = f": no new file or folder under {key} = {self.follow_links}"
        return (f"{self.root}: {self._skipped_links}{why}",)

    @property
    def left_out(self) -> str:
        """A note on what was skipped, for a manifest's ``source``."""
        count = self.links + self.specials
        return f" ({count} links and special files left out)" if count else ""

    def nothing(self, what: str, fix: str, key: str) -> DataError:
        """Return the error for a folder without files: D191 if links were skipped, else D110."""
        if not self.links:
            if skipped := self._files_left_out:
                what += f" ({skipped})"
            return DataError(110, self.root, what, fix)
        fix = f"name the folder that the links stay under: {key}=ROOT"
        if self.follow_links is not None:
            fix = f"name a folder above all targets, instead of {key}={self.follow_links}"
        return DataError(191, self.root, f"{what}, and {self._skipped_links}", fix)

    @property
    def _files_left_out(self) -> str:
        kinds = sorted(self.others.items(), key=lambda kind: (-kind[1], kind[0]))
        parts = [f"{count} {ending}" for ending, count in kinds]
        if self.hidden:
            parts.append(f"{self.hidden} hidden")
        return f"left out: {listed(parts)}" if parts else ""

    @property
    def _skipped_links(self) -> str:
        count = "1 symbolic link was" if self.links == 1 else f"{self.links} symbolic links were"
        return f"{count} skipped"


def walk(
    root: str, suffixes: Sequence[str] = ("",), follow_links: str | None = None, hidden: bool = True
) -> Walked:
    """Find the regular files under ``root`` whose lower-case names end in one of ``suffixes``.

    Links are followed if their real target lies under the folder ``follow_links``. Each folder is
    walked once, so that circles end. Names that begin with a dot count only if ``hidden``: programs
    keep copies under them. DataError D101.
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
    links: list[tuple[bytes, str]] = []  # a heap
    num_specials = num_hidden = num_links = 0
    others: Counter[str] = Counter()
    visited: set[str] = set()  # real paths of folders
    pending = [""]
    while pending or (links and allowed):
        new: list[tuple[str, bool]] = []  # names, and whether they are folders
        if pending:
            folder = pending.pop()
            path = os.path.join(root, folder)
            real = os.path.realpath(path) if allowed else path
            if real in visited:  # a link led above a folder that was walked
                continue
            visited.add(real)
            try:
                with os.scandir(path) as scan:
                    entries = list(scan)
            except OSError as error:
                raise unreadable(path, error) from error
            for entry in entries:
                name = os.path.join(folder, entry.name)
                is_folder = entry.is_dir(follow_symlinks=False)
                if entry.name.startswith(".") and not hidden:
                    num_hidden += 1
                elif entry.is_symlink():
                    heappush(links, (os.fsencode(name), name))
                elif is_folder or entry.is_file(follow_symlinks=False):
                    new.append((name, is_folder))
                else:
                    num_specials += 1
        else:  # links come after all real folders, which they must not replace
            name = heappop(links)[1]
            target, mode = "", 0
            with suppress(OSError, ValueError):  # it leads nowhere, or in a circle
                target = os.path.realpath(os.path.join(root, name), strict=True)
                mode = os.stat(target).st_mode
            is_folder = stat.S_ISDIR(mode)
            is_new = stat.S_ISREG(mode) or (is_folder and target not in visited)
            if is_new and Path(target).is_relative_to(allowed or ""):
                new = [(name, is_folder)]
            else:
                num_links += 1
        for name, is_folder in new:
            if is_folder:
                pending.append(name)
                if os.sep not in name:
                    folders.append(name)
            elif name.lower().endswith(tuple(suffixes)):
                names.append(name)
            else:
                others[os.path.splitext(name)[1].lower() or "without an ending"] += 1
    names.sort(key=os.fsencode)
    folders.sort(key=os.fsencode)
    num_links += len(links)
    return Walked(root, names, folders, num_links, num_specials, follow_links, others, num_hidden)


def named_files(path: str, suffixes: tuple[str, ...] = ("",)) -> list[str]:
    """Return a file, all files under a folder, or those of a pattern with ``*``. DataError D101."""
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


def read_files(paths: Sequence[str], seconds: "memoryview[float] | None" = None) -> list[bytes]:
    """Return the content of each file. DataError D101 if one cannot be read.

    All are asked for before the first is read: with one request at a time, a disk reads small
    files a quarter as fast (benchmarks/README.md). What opening and reading each file took is
    added to ``seconds``: float64 [files].
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
    if seconds is None:
        return since
    now = perf_counter()
    seconds[place] += now - since
    return now


def read_all(descriptor: int) -> bytes:
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
    """Ask the system to read the files of items into memory, if each item has files of its own."""
    traits = input_traits(source)
    with suppress(DataError):  # a path that the input does not allow
        ends = [set(traits.item_files(item)) for item in (items[0], items[-1])]
        if ends[0] == ends[1]:  # one file holds many items, which are not worth listing
            return
        paths = dict.fromkeys(path for item in items for path in traits.item_files(item))
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
    """Counts what this process reads from disks."""

    _blocks = 0

    def were_made(self, num_files: int) -> bool:
        """Return whether ``num_files``, all that were read since last time, came from a disk."""
        blocks = own_usage("ru_inblock")  # of 512 bytes
        before, self._blocks = self._blocks, blocks
        return blocks - before >= num_files


def is_class(name: str) -> bool:
    """Return whether a folder is a class, and not one that packing is still writing."""
    return not name.endswith(PARTS)


def images_of(walked: Walked) -> list[tuple[str, str]]:
    """Return the class and the relative name of each image in a class, in byte order."""
    classes = set(filter(is_class, walked.folders))
    images = [(name.split(os.sep)[0], name) for name in walked.names]
    images = [image for image in images if image[0] in classes]
    return sorted(images, key=lambda image: os.fsencode(image[0]))  # names are in order already


def loose_notes(walked: Walked, num_images: int, noun: str) -> tuple[str, ...]:
    """Say how many images lie in no class and are left out, if any."""
    count = len(walked.names) - num_images
    if not count:
        return ()
    nouns = noun if count == 1 else f"{noun}s"
    return (f"{walked.root}: left out: {count} {nouns} in no subfolder",)
