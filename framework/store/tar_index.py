"""The places of the members of WebDataset shards, read from the headers once and then from a file.

The index of a shard is ``NAME.tar.paceline`` beside it, or a file in the user's cache folder. It
belongs to a shard of one size and one time of its last change. Nothing is ever extracted.
"""

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final
from zlib import crc32

import numpy as np

from framework.errors import DataError, ResourceError
from framework.store import files, foreign
from framework.system.durable import write_bytes
from framework.system.portable import BYTES, NO_FOLLOW, NO_WAIT, read_at

INDEX_SUFFIX = ".paceline"  # behind the shard's name
LONGEST_KEPT = 64  # bytes of a text member that the index keeps, so that labels cost no reading
HEADER = tarfile.BLOCKSIZE  # bytes before a member's own
MOST_HEADER_BYTES = 1 << 24  # of one name or list of pax headers; a hostile one asks for gigabytes
TAIL_BYTES = 1 << 16  # behind the last member, which must all be zero
MAGIC = b"PLTARIX3"
RECORD = np.dtype([("key_bytes", "<i8"), ("members", "<i8")])
MEMBER = np.dtype([("suffix", "<u4"), ("start", "<i8"), ("size", "<i8"), ("crc", "<u4")])


class ShardIndex(NamedTuple):
    """The records of a shard in the order of their first members, and the places of all members."""

    suffixes: list[str]  # what stands behind the first dot of members' names
    keys: bytes  # what stands before it, one after another
    records: np.ndarray  # ``RECORD``: the bytes of each key, and the number of members
    members: np.ndarray  # ``MEMBER``: number of the suffix, first byte, bytes, CRC32 of ``HEADER``
    texts: bytes  # short texts, one after another
    left_out: int  # members that belong to no record


def is_text_suffix(suffix: str) -> bool:
    """Return whether a suffix is that of a text, such as ``cls`` and ``score.txt``."""
    return suffix.lower().rpartition(".")[2] in ("cls", "txt")


def shard_index(shard: str, keep: bool) -> tuple[ShardIndex, files.Identity, bool]:
    """Return the index of a shard, the shard's identity, and whether the index is a file.

    If there is none, ``keep`` says whether to write it. DataError D101, D117 if the shard changes
    meanwhile, D163 for a member that is there twice, D165 for one that leads out, D166 for damage.
    """
    identity = files.identify(shard)
    places = index_places(shard)
    for place in places:
        if (index := _read_index(place, identity)) is not None:
            return index, identity, True
    index = list_shard(shard)
    files.identify(shard, identity)
    head = {"identity": identity[1:], "left_out": index.left_out, "suffixes": index.suffixes}
    file = io.BytesIO()
    for data in (json.dumps(head).encode(), index.keys, index.texts):
        np.save(file, np.frombuffer(data, np.uint8))
    np.save(file, index.records)
    np.save(file, index.members)
    content = MAGIC + crc32(file.getbuffer()).to_bytes(4, "little") + file.getvalue()
    for place in places if keep else ():
        folder = os.path.dirname(place) or "."
        with suppress(ResourceError, OSError):
            # A folder without write permission stays unchanged, even for root.
            if not os.path.isdir(folder) or os.stat(folder).st_mode & 0o222:
                write_bytes(Path(place), content)
                return index, identity, True
    return index, identity, False


def index_places(shard: str) -> list[str]:
    """Return where the index may be: beside the shard, or in the user's cache folder."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(shard))).hexdigest()[:32]
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [shard + INDEX_SUFFIX, os.path.join(folder, "paceline", "tar", name + INDEX_SUFFIX)]


def list_shard(shard: str) -> ShardIndex:
    """Read all headers of a shard. DataError D101, D163, D165, D166 as in ``shard_index``."""
    # By key and by suffix in lower case: suffix, first byte, size, CRC32, text.
    records: dict[str, dict[str, tuple[str, int, int, int, bytes]]] = {}
    left_out = 0
    try:
        with _Headers(shard) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            num_bytes, last_offset = os.fstat(file.fileno()).st_size, -1
            while (entry := archive.next()) is not None:
                name, start, size = entry.name, entry.offset_data, entry.size
                is_file = entry.isreg() and not entry.issparse()
                goes_back = entry.offset <= last_offset or size < 0
                if goes_back or (is_file and start + size > num_bytes):
                    raise tarfile.ReadError(f"truncated or damaged at {name!r}")
                last_offset = entry.offset
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  # or it would keep millions
                if entry.isdir():
                    continue
                if name.startswith("/") or ".." in name.split("/") or "\0" in name:
                    what = f"member {name!r} leads out of the archive"
                    raise DataError(165, shard, what, "do not trust this file")
                folder, slash, last = name.rpartition("/")
                stem, dot, suffix = last.partition(".")
                if not stem or not dot or not is_file:
                    left_out += 1
                    continue
                members = records.setdefault(f"{folder}{slash}{stem}", {})
                if suffix.lower() in members:
                    what = f"has the member {name!r} twice"
                    raise DataError(163, shard, what, "keep one of them")
                count = HEADER
                if is_text_suffix(suffix) and size <= LONGEST_KEPT:
                    count += size
                data = read_at(file.fileno(), count, start - HEADER)
                members[suffix.lower()] = (suffix, start, size, crc32(data[:HEADER]), data[HEADER:])
            # tarfile takes a damaged header for the end of the archive.
            tail = read_at(file.fileno(), TAIL_BYTES, archive.offset)
            if len(tail) < HEADER or tail.strip(b"\0"):
                what = f"damaged at byte {archive.offset}, or its end mark is missing"
                raise tarfile.ReadError(what)
    except PermissionError as error:
        raise files.unreadable(shard, error) from error
    except (tarfile.TarError, *foreign.DAMAGE) as error:
        what = f"not a whole, uncompressed .tar file ({error})"
        fix = "get it again, or unpack it to .tar: gzip -dk, bzip2 -dk, xz -dk or zstd -d"
        raise DataError(166, shard, what, fix) from error
    places = [member for members in records.values() for member in members.values()]
    suffixes = list(dict.fromkeys(place[0] for place in places))
    numbers = {suffix: number for number, suffix in enumerate(suffixes)}
    keys = [key.encode("utf-8", "surrogateescape") for key in records]
    sizes = [(len(key), len(own)) for key, own in zip(keys, records.values(), strict=True)]
    members = np.array([(numbers[place[0]], *place[1:4]) for place in places], MEMBER)
    texts = b"".join(place[4] for place in places)
    return ShardIndex(suffixes, b"".join(keys), np.array(sizes, RECORD), members, texts, left_out)


class _Headers(io.FileIO):
    """A file of headers, which may ask for more than the memory."""

    def read(self, size: int | None = -1) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        if size is None or not 0 <= size <= MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def _read_index(place: str, identity: files.Identity) -> ShardIndex | None:
    try:
        flags = os.O_RDONLY | NO_FOLLOW | NO_WAIT | BYTES  # a pipe would wait for a writer
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
        if tuple(head["identity"]) != identity[1:]:
            return None
        columns = (keys.tobytes(), records, members, texts.tobytes())
        return ShardIndex(head["suffixes"], *columns, head["left_out"])
    except (*foreign.DAMAGE, TypeError):
        return None


@final
class Listed:
    """The records of several shards, as arrays. DataError as in ``shard_index``."""

    def __init__(self, shards: Sequence[str], keep: bool) -> None:
        self.shards = list(shards)
        parts = [shard_index(shard, keep) for shard in shards]
        indexes = [part[0] for part in parts]
        self.identities = [part[1] for part in parts]
        # The shards whose index could not be written.
        self.unkept = [shard for shard, part in zip(shards, parts, strict=True) if not part[2]]
        self.suffixes = list(dict.fromkeys(name for index in indexes for name in index.suffixes))
        numbers = {suffix: number for number, suffix in enumerate(self.suffixes)}
        kinds: list[np.ndarray] = []
        for index in indexes:
            table = np.array([numbers[name] for name in index.suffixes], np.int64)
            kinds.append(table[index.members["suffix"]])
        self.kinds = np.concatenate(kinds)  # the number of each member's suffix
        members = np.concatenate([index.members for index in indexes])
        names = ("start", "size", "crc")
        self.starts, self.sizes, self.crcs = (np.ascontiguousarray(members[name]) for name in names)
        self.left_out = sum(index.left_out for index in indexes)
        is_text = np.array([is_text_suffix(suffix) for suffix in self.suffixes], bool)
        self._is_kept = is_text[self.kinds] & (self.sizes <= LONGEST_KEPT)
        self._texts = b"".join(index.texts for index in indexes)
        self._text_ends = np.cumsum(np.where(self._is_kept, self.sizes, 0))
        records = np.concatenate([index.records for index in indexes])
        self._keys = b"".join(index.keys for index in indexes)
        self._key_ends = np.cumsum(np.append(0, records["key_bytes"]))
        # The number of each record's first member, and of all members.
        self.firsts = np.cumsum(np.append(0, records["members"]))
        counts = [len(index.records) for index in indexes]
        self.shard_numbers = np.repeat(np.arange(len(counts)), counts)  # of each record

    def __len__(self) -> int:
        return len(self.shard_numbers)

    def key(self, index: int) -> str:
        start, end = self._key_ends[index : index + 2]
        return self._keys[start:end].decode("utf-8", "surrogateescape")

    def kept_texts(self, members: np.ndarray) -> list[bytes | None]:
        """Return the bytes of members that the index keeps; None for others."""
        ends = self._text_ends[members]
        columns = (self._is_kept[members], ends - self.sizes[members], ends)
        return [
            self._texts[start:end] if is_kept else None
            for is_kept, start, end in zip(*(c.tolist() for c in columns), strict=True)
        ]
