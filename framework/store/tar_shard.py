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
import struct
import tarfile
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, final
from zlib import crc32

import numpy as np

from framework.errors import DataError, ResourceError
from framework.store.identity import Identity, identify, unreadable
from framework.store.walk_tree import named_files
from framework.system.durable import open_durable

SUFFIX = ".tar"
INDEX_SUFFIX = ".paceline"  # behind the shard's name
TEXTS = ("cls", "txt")
LONGEST_KEPT = 64  # bytes of a text member that the index keeps, so that labels cost no reading
HEADER = tarfile.BLOCKSIZE  # bytes before a member's own
MOST_HEADER_BYTES = 1 << 24  # of one name or list of pax headers; a hostile one asks for gigabytes
TAIL_BYTES = 1 << 16  # behind the last member, of which only zeros may be there
WINDOW = 4 * HEADER  # read at a time: a pax header, its content, and a header
POSIX = b"ustar\x0000"  # in a header; GNU's has no prefix of names
TIMES = re.compile(rb"(?:\d{1,3} [amc]time=\d{1,20}(?:\.\d{1,20})?\n)+")
OCTAL = re.compile(rb"[0-7]{1,11}")
MAGIC = b"PLTARIX1"
LENGTH = struct.Struct("<I")
WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
NUMBERS = ("size", "mtime_ns", "left_out", "records", "members", "keys", "texts")
ARRAYS = (
    ("records", "<i8"),
    ("records", "<i8"),
    ("members", "<u2"),
    ("members", "<i8"),
    ("members", "<i8"),
    ("members", "<u4"),
)
MOST_SUFFIXES = 1 << 16
COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gzip -dk"),
    b"BZh": ("bzip2", "bzip2 -dk"),
    b"\xfd7zXZ": ("xz", "xz -dk"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
}
COMPRESSED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
# What tarfile raises for damaged files.
PARSING = (tarfile.TarError, ValueError, ArithmeticError, LookupError, RecursionError)
BROKEN = (*PARSING, OSError, EOFError, MemoryError)
# What a damaged index raises.
DAMAGE = (ValueError, TypeError, KeyError, LookupError, RecursionError, OSError, OverflowError)


class ShardIndex(NamedTuple):
    """The records of a shard in the order of their first members, and the places of all members.

    Attributes:
        suffixes: What stands behind the first dot of members' names.
        keys: The names of the records up to the first dot, one after another.
        key_ends: int64 [records]: where each name ends in ``keys``.
        lasts: int64 [records]: the number of the member behind the last one of each record.
        kinds: uint16 [members]: the number of the suffix.
        starts: int64 [members]: the first byte in the shard.
        sizes: int64 [members]: bytes.
        crcs: uint32 [members]: CRC32 of the header, the ``HEADER`` bytes before the first one.
        texts: The bytes of the members that are short texts, one after another.
        left_out: The number of members that belong to no record.
    """

    suffixes: list[str]
    keys: bytes
    key_ends: np.ndarray
    lasts: np.ndarray
    kinds: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    crcs: np.ndarray
    texts: bytes
    left_out: int

    @property
    def is_kept(self) -> np.ndarray:
        """Whether ``texts`` holds each member: bool [members]."""
        is_text = np.array([is_text_suffix(suffix) for suffix in self.suffixes], bool)
        if not len(is_text):
            return np.zeros(0, bool)
        return is_text[self.kinds] & (self.sizes <= LONGEST_KEPT)


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
    return index, identity, keep and any(_written(place, data) for place in places)


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
            listing = _Listing(shard, file.fileno())
            if not listing.add_plain():
                file.seek(0)
                listing = _Listing(shard, file.fileno())
                _add_any(listing, file)
    except PermissionError as error:
        raise unreadable(shard, error) from error
    except BROKEN as error:
        what = f"not a whole, uncompressed .tar file ({error})"
        raise DataError(166, shard, what, "get it again; unpack .tar.gz to .tar") from error
    return listing.index()


def _add_any(listing: "_Listing", file: "_Headers") -> None:
    """Add the members of an archive, whatever its kind. One of ``BROKEN`` if it is damaged."""
    with tarfile.open(fileobj=file, mode="r:") as archive:
        last = -1
        while (entry := archive.next()) is not None:
            goes_back = entry.offset <= last or entry.size < 0
            is_file = entry.isreg() and not entry.issparse()
            end = entry.offset_data + entry.size
            if goes_back or (is_file and end > listing.num_bytes):
                raise tarfile.ReadError(f"truncated or damaged at {entry.name!r}")
            last = entry.offset
            archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  # or it would keep millions
            if not entry.isdir():
                listing.add(entry.name, entry.offset_data, entry.size, is_file)
        listing.check_end(archive.offset)


class _Headers(io.FileIO):
    """A file of which only headers are read: a hostile one may ask for more than the memory."""

    def read(self, size: int | None = -1) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        if size is None or not 0 <= size <= MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


@final
class _Listing:
    """The records of a shard while its headers are read."""

    def __init__(self, shard: str, descriptor: int) -> None:
        self.shard = shard
        self.descriptor = descriptor
        self.num_bytes = os.fstat(descriptor).st_size
        self.left_out = 0
        # By key and by suffix in lower case: suffix, first byte, size, CRC32, text.
        self.records: dict[str, dict[str, tuple[str, int, int, int, bytes]]] = {}

    def add_plain(self) -> bool:
        """Add all members if they are plain files, which takes a fifth of tarfile's time.

        Return False for an archive with anything else, of which some members may be added.
        """
        offset = 0
        while True:
            data = os.pread(self.descriptor, WINDOW, offset)
            if data[:HEADER] == bytes(HEADER):
                self.check_end(offset)
                return True
            at = behind_times(data)
            plain = plain_header(data[at : at + HEADER])
            start = offset + at + HEADER
            if plain is None or plain[1] > self.num_bytes - start:
                return False
            name, size = plain
            self.add(name, start, size, True)
            offset = start + _whole_blocks(size)

    def add(self, name: str, start: int, size: int, is_file: bool) -> None:
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
        data = os.pread(self.descriptor, num_bytes, start - HEADER)
        members[suffix.lower()] = (suffix, start, size, crc32(data[:HEADER]), data[HEADER:])

    def check_end(self, offset: int) -> None:
        """Check that an archive ends with zeros: tarfile takes a damaged header for the end."""
        tail = os.pread(self.descriptor, TAIL_BYTES, offset)
        if len(tail) < HEADER:
            raise tarfile.ReadError("truncated: its end mark is missing")
        if tail[:HEADER].strip(b"\0"):
            raise tarfile.ReadError(f"damaged header at byte {offset}")
        if tail.strip(b"\0"):
            raise tarfile.ReadError(f"something follows its end mark at byte {offset}")

    def index(self) -> ShardIndex:
        """Return what was added. DataError D166 if there are too many suffixes."""
        members = [member for record in self.records.values() for member in record.values()]
        suffixes = dict.fromkeys(member[0] for member in members)
        if len(suffixes) > MOST_SUFFIXES:
            fix = "give members of a record names that differ behind the first dot"
            raise DataError(166, self.shard, f"has {len(suffixes)} different suffixes", fix)
        numbers = {suffix: number for number, suffix in enumerate(suffixes)}
        keys = [key.encode("utf-8", "surrogateescape") for key in self.records]
        counts = [len(record) for record in self.records.values()]
        return ShardIndex(
            list(numbers),
            b"".join(keys),
            np.cumsum([len(key) for key in keys], dtype=np.int64),
            np.cumsum(counts, dtype=np.int64),
            np.array([numbers[member[0]] for member in members], np.uint16),
            np.array([member[1] for member in members], np.int64),
            np.array([member[2] for member in members], np.int64),
            np.array([member[3] for member in members], np.uint32),
            b"".join(member[4] for member in members),
            self.left_out,
        )


def plain_header(head: bytes) -> tuple[str, int] | None:
    """Return the name and the size of a file with a usual header; None for any other header.

    Source: POSIX.1-2001, the ustar format.
    """
    prefix = head[345:500]
    is_plain = len(head) == HEADER and head[156:157] in (b"0", b"\0")
    if not is_plain or (head[257:265] != POSIX and prefix.strip(b"\0")):
        return None
    size = _octal(head[124:136])
    raw = head[:100].split(b"\0", 1)[0]
    if size is None or not _has_checksum(head) or raw.endswith(b"/"):
        return None
    folder = prefix.split(b"\0", 1)[0]
    if folder:
        raw = folder + b"/" + raw
    return raw.decode("utf-8", "surrogateescape"), size


def behind_times(data: bytes) -> int:
    """Return where the header of a member begins: behind pax headers with nothing but times.

    Python's tarfile writes such a header for every time that is not a whole number.
    """
    if data[156:157] != b"x" or data[257:265] != POSIX or not _has_checksum(data[:HEADER]):
        return 0
    size = _octal(data[124:136])
    if size is None or size > WINDOW - 2 * HEADER:
        return 0
    content = data[HEADER : HEADER + size]
    is_harmless = TIMES.fullmatch(content) is not None
    for line in content.split(b"\n")[:-1] if is_harmless else ():
        is_harmless = is_harmless and int(line.split(b" ", 1)[0]) == len(line) + 1
    return HEADER + _whole_blocks(size) if is_harmless else 0


def _has_checksum(head: bytes) -> bool:
    number = _octal(head[148:156])
    return number == sum(head) - sum(head[148:156]) + 8 * ord(" ")


def _octal(field: bytes) -> int | None:
    digits = field.split(b"\0", 1)[0].strip()
    return int(digits, 8) if OCTAL.fullmatch(digits) else None


def _whole_blocks(size: int) -> int:
    return -(-size // HEADER) * HEADER


def _packed(index: ShardIndex, identity: Identity) -> bytes:
    """Return an index as the bytes of a file: head, arrays, and the CRC32 of both."""
    counts = (len(index.key_ends), len(index.kinds), len(index.keys), len(index.texts))
    head: dict[str, Any] = dict(zip(NUMBERS, (*identity[1:], index.left_out, *counts), strict=True))
    text = json.dumps({**head, "suffixes": index.suffixes}).encode()
    parts = index.key_ends, index.lasts, index.kinds, index.starts, index.sizes, index.crcs
    arrays = [
        array.astype(dtype).tobytes() for array, (_, dtype) in zip(parts, ARRAYS, strict=True)
    ]
    data = b"".join((MAGIC, LENGTH.pack(len(text)), text, *arrays, index.keys, index.texts))
    return data + LENGTH.pack(crc32(data))


def _written(place: str, data: bytes) -> bool:
    """Publish an index. Return False if this cannot be written there."""
    folder = os.path.dirname(place) or "."
    try:
        # A folder that nobody may write to stays as it is, even if this is root.
        if os.path.isdir(folder) and not os.stat(folder).st_mode & WRITE_BITS:
            return False
        with open_durable(Path(place)) as file:
            file.write(data)
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
            return _unpacked(file.read(), identity)
    except DAMAGE:
        return None


def _unpacked(data: bytes, identity: Identity) -> ShardIndex:
    """Return the index in the bytes of a file. One of ``DAMAGE`` if it is not the shard's."""
    if not data.startswith(MAGIC) or LENGTH.unpack(data[-4:])[0] != crc32(data[:-4]):
        raise ValueError("damaged")
    at = len(MAGIC) + LENGTH.size
    end = at + LENGTH.unpack(data[len(MAGIC) : at])[0]
    counts, suffixes = _unpacked_head(data[at:end], identity)
    arrays: list[np.ndarray] = []
    for count, dtype in ARRAYS:
        arrays.append(np.frombuffer(data, dtype, counts[count], end).astype(dtype[1:]))
        end += arrays[-1].nbytes
    keys = data[end : end + counts["keys"]]
    texts = data[end + counts["keys"] : -4]
    index = ShardIndex(suffixes, keys, *arrays, texts=texts, left_out=counts["left_out"])
    if len(texts) != counts["texts"] or not _is_possible(index, identity[1]):
        raise ValueError("impossible places")
    return index


def _unpacked_head(data: bytes, identity: Identity) -> tuple[dict[str, int], list[str]]:
    """Return the numbers and the suffixes in the head of an index."""
    head = json.loads(data)
    counts = {name: int(head[name]) for name in NUMBERS}
    suffixes = head["suffixes"]
    if any(count < 0 for count in counts.values()) or not all(type(s) is str for s in suffixes):
        raise ValueError("impossible sizes")
    if (counts["size"], counts["mtime_ns"]) != identity[1:]:
        raise ValueError("of another shard")
    return counts, suffixes


def _is_possible(index: ShardIndex, size: int) -> bool:
    """Return whether all places of an index lie inside a shard of ``size`` bytes."""
    ends = np.concatenate([[0], index.key_ends])
    lasts = np.concatenate([[0], index.lasts])
    is_ordered = (np.diff(ends) >= 0).all() and (np.diff(lasts) > 0).all()
    if not is_ordered or ends[-1] != len(index.keys) or lasts[-1] != len(index.kinds):
        return False
    if (index.kinds >= len(index.suffixes)).any() or (index.starts < HEADER).any():
        return False
    if (index.sizes < 0).any() or (index.sizes > size - index.starts).any():
        return False
    return int(index.sizes[index.is_kept].sum()) == len(index.texts)
