"""WebDataset shards: where each member of a .tar file lies. Nothing is ever extracted.

Members with one name, up to its first dot, are one record. Their places are found once and kept in
an index: ``NAME.tar.paceline`` beside the shard, or a file in the user's cache folder if the
shard's folder cannot be written to. An index belongs to a shard of one size and one time of its
last change, and holds the CRC32 of every member's header. So a shard that was replaced without
changing these two is noticed when a record is read. A damaged or an old index is made again.

Indexes are published atomically. Several processes may make the same one: the last one stays.
"""

import hashlib
import io
import json
import os
import re
import stat
import tarfile
from pathlib import Path
from shlex import quote
from typing import NamedTuple, final
from zlib import crc32

import numpy as np

from framework.errors import DataError, ResourceError
from framework.store.identity import Identity, identify, unreadable
from framework.store.walk_tree import named_files
from framework.system.durable import write_bytes

SUFFIX = ".tar"
INDEX_SUFFIX = ".paceline"  # behind the shard's name
TEXTS = ("cls", "txt")
LONGEST_KEPT = 64  # bytes of a text member that the index keeps, so that labels cost no reading
HEADER = tarfile.BLOCKSIZE  # bytes before a member's own
MOST_HEADER_BYTES = 1 << 24  # of one name or list of pax headers; a hostile one asks for gigabytes
TAIL_BYTES = 1 << 16  # behind the last member, of which only zeros may be there
WINDOW = 4 * HEADER  # read at a time: a pax header, its content, and a header
TIMES = re.compile(rb"(?:\d{1,3} [amc]time=\d{1,20}(?:\.\d{1,20})?\n)+")
MAGIC = b"PLTARIX2"
WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
MOST_SUFFIXES = 1 << 16
RECORD = np.dtype([("key_end", "<i8"), ("last", "<i8")])
MEMBER = np.dtype([("suffix", "<u2"), ("start", "<i8"), ("size", "<i8"), ("crc", "<u4")])
COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gzip -dk"),
    b"BZh": ("bzip2", "bzip2 -dk"),
    b"\xfd7zXZ": ("xz", "xz -dk"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
}
COMPRESSED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
# What tarfile raises for damaged files, and NumPy for damaged indexes.
DAMAGE = (ValueError, ArithmeticError, LookupError, RecursionError, OSError, EOFError, MemoryError)
BROKEN = (tarfile.TarError, *DAMAGE)


class ShardIndex(NamedTuple):
    """The records of a shard in the order of their first members, and the places of all members.

    Attributes:
        suffixes: What stands behind the first dot of members' names.
        keys: The names of the records up to the first dot, one after another.
        records: ``RECORD`` [records]: where each name ends in ``keys``, and the number of the
            member behind the record's last one.
        members: ``MEMBER`` [members]: the number of the suffix, the first byte in the shard, the
            bytes, and the CRC32 of the header, the ``HEADER`` bytes before the first one.
        texts: The bytes of the members that are short texts, one after another.
        left_out: The number of members that belong to no record.
    """

    suffixes: list[str]
    keys: bytes
    records: np.ndarray
    members: np.ndarray
    texts: bytes
    left_out: int

    @property
    def is_kept(self) -> np.ndarray:
        """Whether ``texts`` holds each member: bool [members]."""
        is_text = np.array([*map(is_text_suffix, self.suffixes), False])
        return is_text[self.members["suffix"]] & (self.members["size"] <= LONGEST_KEPT)


def is_text_suffix(suffix: str) -> bool:
    """Return whether a member with this suffix is a text, such as ``cls`` and ``score.txt``."""
    return suffix.lower().rpartition(".")[2] in TEXTS


def named_shards(path: str) -> list[str]:
    """Return a shard, all shards under a folder, or those of a pattern, in byte order.

    Raises:
        DataError: D101 if there is no shard; D166 if a folder holds only compressed ones.
    """
    try:
        return named_files(path, (SUFFIX,))
    except DataError:
        if os.path.isdir(path):
            for name in named_files(path, COMPRESSED_SUFFIXES)[:1]:
                list_shard(name)
        raise


def shard_index(shard: str, keep: bool) -> tuple[ShardIndex, Identity, bool]:
    """Return the index of a shard, the shard's identity, and whether the index is a file.

    Args:
        shard: The path of a .tar file.
        keep: Whether to write the index if there is none.

    Raises:
        DataError: D101 if the shard cannot be read; D117 if it changes meanwhile; D163 for a member
            that is there twice; D165 for one that leads out; D166 for a damaged or compressed file.
    """
    identity = identify(shard)
    places = index_places(shard)
    for place in places:
        index = _read_index(place, identity)
        if index is not None:
            return index, identity, True
    index = list_shard(shard)
    identify(shard, identity)
    data = _packed(index, identity)
    return index, identity, keep and any(_is_written(place, data) for place in places)


def index_places(shard: str) -> list[str]:
    """Return where the index of a shard may be: beside it, or in the user's cache folder."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(shard))).hexdigest()[:32]
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [shard + INDEX_SUFFIX, os.path.join(folder, "paceline", "tar", name + INDEX_SUFFIX)]


def list_shard(shard: str) -> ShardIndex:
    """Read all headers of a shard. DataError D101, D163, D165, D166 as in ``shard_index``."""
    try:
        with _Headers(shard) as file:
            head = file.read(8)
            for magic, (name, command) in COMPRESSED.items():
                if head.startswith(magic):
                    what = f"is compressed with {name}, so its members cannot be read at any place"
                    fix = f"unpack it to .tar: {command} {quote(shard)}"
                    raise DataError(166, shard, what, fix)
            listing = Listing(shard, file)
            if not listing.add_plain():
                listing = Listing(shard, file)
                listing.add_any()
    except PermissionError as error:
        raise unreadable(shard, error) from error
    except BROKEN as error:
        what = f"not a whole, uncompressed .tar file ({error})"
        raise DataError(166, shard, what, "get it again; unpack .tar.gz to .tar") from error
    return listing.index()


class _Headers(io.FileIO):
    """A file of which only headers are read: a hostile one may ask for more than the memory."""

    def read(self, size: int | None = -1) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        if size is None or not 0 <= size <= MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


@final
class Listing:
    """The records of a shard while its headers are read. One of ``BROKEN`` if they are damaged."""

    def __init__(self, shard: str, file: io.FileIO) -> None:
        self.shard, self.file = shard, file
        self.num_bytes = os.fstat(file.fileno()).st_size
        self.left_out = 0
        # By key and by suffix in lower case: suffix, first byte, size, CRC32, text.
        self.records: dict[str, dict[str, tuple[str, int, int, int, bytes]]] = {}

    def add_plain(self) -> bool:
        """Add all members if they are plain files, which takes half of tarfile's time.

        Python's tarfile writes a pax header for every time that is not a whole number. Such headers
        are skipped. Return False for an archive with anything else, of which some members may be
        added.
        """
        offset = 0
        while True:
            data = os.pread(self.file.fileno(), WINDOW, offset)
            if data[:HEADER] == bytes(HEADER):
                self._check_end(offset)
                return True
            at = 0
            try:
                member = tarfile.TarInfo.frombuf(data[:HEADER], "utf-8", "surrogateescape")
                if member.type == tarfile.XHDTYPE and member.size <= WINDOW - 2 * HEADER:
                    if not _are_times(data[HEADER : HEADER + member.size]):
                        return False
                    at = HEADER + _whole_blocks(member.size)
                    header = data[at : at + HEADER]
                    member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            except tarfile.HeaderError:
                return False
            start = offset + at + HEADER
            is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
            if not is_plain or not 0 <= member.size <= self.num_bytes - start:
                return False
            self._add(member.name, start, member.size, True)
            offset = start + _whole_blocks(member.size)

    def add_any(self) -> None:
        """Add the members of an archive, whatever its kind."""
        self.file.seek(0)
        with tarfile.open(fileobj=self.file, mode="r:") as archive:
            last = -1
            while (entry := archive.next()) is not None:
                goes_back = entry.offset <= last or entry.size < 0
                is_file = entry.isreg() and not entry.issparse()
                end = entry.offset_data + entry.size
                if goes_back or (is_file and end > self.num_bytes):
                    raise tarfile.ReadError(f"truncated or damaged at {entry.name!r}")
                last = entry.offset
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  # or it would keep millions
                if not entry.isdir():
                    self._add(entry.name, entry.offset_data, entry.size, is_file)
            self._check_end(archive.offset)

    def _add(self, name: str, start: int, size: int, is_file: bool) -> None:
        """Add a member, or count it: links, devices, hidden files, names without a suffix."""
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            what = f"member {name!r} leads out of the archive"
            raise DataError(165, self.shard, what, "do not trust this file")
        folder, slash, last = name.rpartition("/")
        stem, dot, suffix = last.partition(".")
        if not stem or not dot or not is_file:
            self.left_out += 1
            return
        members = self.records.setdefault(f"{folder}{slash}{stem}", {})
        if suffix.lower() in members:
            what = f"has the member {name!r} twice"
            raise DataError(163, self.shard, what, "keep one of them")
        num_bytes = HEADER
        if is_text_suffix(suffix) and size <= LONGEST_KEPT:
            num_bytes += size
        data = os.pread(self.file.fileno(), num_bytes, start - HEADER)
        members[suffix.lower()] = (suffix, start, size, crc32(data[:HEADER]), data[HEADER:])

    def _check_end(self, offset: int) -> None:
        """Check that an archive ends with zeros: tarfile takes a damaged header for the end."""
        tail = os.pread(self.file.fileno(), TAIL_BYTES, offset)
        if len(tail) < HEADER:
            raise tarfile.ReadError("truncated: its end mark is missing")
        if tail[:HEADER].strip(b"\0"):
            raise tarfile.ReadError(f"damaged header at byte {offset}")
        if tail.strip(b"\0"):
            raise tarfile.ReadError(f"something follows its end mark at byte {offset}")

    def index(self) -> ShardIndex:
        """Return what was added. DataError D166 if there are too many suffixes."""
        members = [member for record in self.records.values() for member in record.values()]
        suffixes = list(dict.fromkeys(member[0] for member in members))
        if len(suffixes) > MOST_SUFFIXES:
            fix = "give members of a record names that differ behind the first dot"
            raise DataError(166, self.shard, f"has {len(suffixes)} different suffixes", fix)
        numbers = {suffix: number for number, suffix in enumerate(suffixes)}
        keys = [key.encode("utf-8", "surrogateescape") for key in self.records]
        records = np.empty(len(keys), RECORD)
        records["key_end"] = np.cumsum([len(key) for key in keys])
        records["last"] = np.cumsum([len(record) for record in self.records.values()])
        places = np.array([(numbers[member[0]], *member[1:4]) for member in members], MEMBER)
        texts = b"".join(member[4] for member in members)
        return ShardIndex(suffixes, b"".join(keys), records, places, texts, self.left_out)


def _are_times(content: bytes) -> bool:
    """Return whether a pax header says nothing but times."""
    if TIMES.fullmatch(content) is None:
        return False
    lines = content.split(b"\n")[:-1]
    return all(int(line.split(b" ", 1)[0]) == len(line) + 1 for line in lines)


def _whole_blocks(size: int) -> int:
    return -(-size // HEADER) * HEADER


def _packed(index: ShardIndex, identity: Identity) -> bytes:
    """Return an index as the bytes of a file: magic, CRC32, and arrays as .npy files."""
    suffixes, keys, records, members, texts, left_out = index
    head = json.dumps({"identity": identity[1:], "left_out": left_out, "suffixes": suffixes})
    strings = [np.frombuffer(data, np.uint8) for data in (head.encode(), keys, texts)]
    file = io.BytesIO()
    for array in (*strings, records, members):
        np.save(file, array)
    return MAGIC + crc32(file.getbuffer()).to_bytes(4, "little") + file.getvalue()


def _is_written(place: str, data: bytes) -> bool:
    """Publish an index. Return False if this cannot be written there."""
    folder = os.path.dirname(place) or "."
    try:
        # A folder that nobody may write to stays as it is, even if this is root.
        if os.path.isdir(folder) and not os.stat(folder).st_mode & WRITE_BITS:
            return False
        write_bytes(Path(place), data)
    except (ResourceError, OSError):
        return False
    return True


def _read_index(place: str, identity: Identity) -> ShardIndex | None:
    """Return the index in a file; None if there is none that belongs to the shard."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would wait for a writer
        with os.fdopen(os.open(place, flags), "rb") as file:
            status = os.fstat(file.fileno())
            # Every member takes more bytes in a shard than in its index.
            if not stat.S_ISREG(status.st_mode) or status.st_size > identity[1] + (1 << 16):
                return None
            magic, crc, data = file.read(8), file.read(4), file.read()
        if magic != MAGIC or crc32(data) != int.from_bytes(crc, "little"):
            return None
        arrays = io.BytesIO(data)
        text, keys, texts, records, members = (np.load(arrays) for _ in range(5))
        head = json.loads(text.tobytes())
        index = ShardIndex(
            head["suffixes"], keys.tobytes(), records, members, texts.tobytes(), head["left_out"]
        )
        is_own = tuple(head["identity"]) == identity[1:]
        return index if is_own and _is_possible(index, identity[1]) else None
    except (*DAMAGE, TypeError):
        return None


def _is_possible(index: ShardIndex, size: int) -> bool:
    """Return whether all places of an index lie inside a shard of ``size`` bytes."""
    suffixes, keys, records, members, texts, left_out = index
    if records.dtype != RECORD or members.dtype != MEMBER or type(left_out) is not int:
        return False
    if not all(isinstance(suffix, str) for suffix in suffixes):
        return False
    ends = np.concatenate([[0], records["key_end"]])
    lasts = np.concatenate([[0], records["last"]])
    is_ordered = (np.diff(ends) >= 0).all() and (np.diff(lasts) > 0).all()
    if not is_ordered or ends[-1] != len(keys) or lasts[-1] != len(members):
        return False
    starts, sizes = members["start"], members["size"]
    if (members["suffix"] >= len(suffixes)).any() or (starts < HEADER).any():
        return False
    if (sizes < 0).any() or (sizes > size - starts).any():
        return False
    return int(sizes[index.is_kept].sum()) == len(texts)
