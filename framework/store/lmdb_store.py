"""LMDB stores: blocks of records under the number of their first one, then the manifest.

A number is 8 bytes, big-endian. A block holds consecutive records: their CRC32 (uint32), the array
of each raw field in the manifest's order, and for each other field, and for the keys unless these
are numbers, where the bytes of each record begin in the block, and where the last ones end
(int64). Then come these bytes. Each part is padded to 8 bytes. A CRC32 covers the fields, the
number and the key, so that it also detects a record in a wrong place.

Where each value lies is read from the file itself (LMDB 0.9's format), so that a memory map serves
batches. A store never changes under its name, so that no transaction or lock is needed.
"""

import os
import re
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import lmdb
import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import LABEL, Field, Records
from framework.errors import DataError
from framework.media.header import is_image
from framework.store import file_store, files, foreign
from framework.store.gather import Gather, check_range
from framework.system.durable import abandon

# Source: lmdb's ``mdb.c``: MDB_meta, MDB_page and MDB_node of data version 1.
DATA_VERSION = 1
META_BYTES = 152  # of a page header and the meta data behind it
HEADER_BYTES = 16  # of a page; the value of an overflow page starts behind it
BRANCH, LEAF, OVERFLOW, BIG_DATA = 1, 2, 4, 1
NO_ROOT = (1 << 64) - 1
LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)", re.ASCII | re.DOTALL)
PLACEHOLDER = r"%(?:0\d+)?d|%s|%%"  # in a pattern of keys
MANIFEST_KEY = b"manifest"  # sorts after the key of every record
FIRST_MAP_BYTES = 64 << 20
# A transaction looks at pages of its map, around which the system maps others: some 60 kB each.
REMAP_BLOCKS = 64
MAX_VALUE_BYTES = (1 << 31) - 1  # LMDB's own limit is twice that; other readers stop here
BLOCK_BYTES = 1 << 20  # 100 million records of 16 bytes are 1,908 blocks
CRC_BYTES = 4
PLACE_BYTES = 8
CRCS, KEYS = "\0crc32", file_store.KEYS  # parts of a block but the fields


@final
class LMDBStore(file_store.FileStore):
    """A RecordStore over one LMDB file."""

    choice = "lmdb"

    def _map(self) -> "OpenLMDB":
        return OpenLMDB(self.path)


@final
class LMDBWriter(file_store.FileWriter):
    """A RecordWriter. Only ``close`` syncs: a temporary file may be lost."""

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        super().__init__(path, fields, num_records)
        raw = [name for name, field in fields.items() if field.encoding == "raw"]
        # What waits until it fills a block: pieces of arrays, and the bytes of each record.
        self._arrays: dict[str, list[bytes]] = {name: [] for name in (CRCS, *raw)}
        self._strings: dict[str, list[bytes]] = {name: [] for name in fields if name not in raw}
        self._first = 0  # the number of the first record that waits
        self._waiting_bytes = 0
        self._num_blocks = 0
        options: dict[str, Any] = {"subdir": False, "lock": False, "sync": False, "max_dbs": 0}
        options |= {"map_size": FIRST_MAP_BYTES, "lib_version": 0}
        try:
            self._environment = lmdb.open(str(self._temporary), **options)
        except lmdb.Error as error:
            abandon(self._publish)
            raise OSError(28, f"LMDB cannot write ({error})") from error

    def _append(self, records: Records, keys: list[bytes] | None, crcs: np.ndarray) -> None:
        count, first = len(crcs), self._num_written
        crcs = _numbered_and_keyed(crcs, np.arange(first, first + count), keys)
        arrays = {CRCS: crcs} | {name: v for name, v in records.items() if name in self._arrays}
        strings: dict[str, list[bytes]] = {}
        for name in records.keys() - arrays.keys():
            strings[name] = list(map(bytes, file_store.buffers(records[name])))
        if keys is not None:
            strings[KEYS] = keys
            self._strings.setdefault(KEYS, [])
        sizes = np.full(count, sum(column.nbytes for column in arrays.values()) // max(1, count))
        for column in strings.values():
            sizes += np.array([PLACE_BYTES + len(data) for data in column], np.int64)
        for number in np.flatnonzero(sizes > MAX_VALUE_BYTES)[:1].tolist():
            name = f"{self.path}: record {first + number}"
            what = f"{sizes[number]} bytes, an LMDB value holds {MAX_VALUE_BYTES}"
            raise DataError(116, name, what, "choose output=hdf5, or make records smaller")
        ends = np.cumsum(sizes)
        done, begin = 0, 0
        while done < count:
            room = begin + BLOCK_BYTES - self._waiting_bytes
            stop = int(np.searchsorted(ends, room, side="right"))
            if not self._waiting_bytes:
                stop = max(stop, done + 1)  # a record may be larger than a block
            for name, column in arrays.items():
                self._arrays[name].append(column[done:stop].tobytes())
            for name, column in strings.items():
                self._strings[name] += column[done:stop]
            if stop > done:
                self._waiting_bytes += int(ends[stop - 1]) - begin
                begin = int(ends[stop - 1])
            done = stop
            if done < count:
                self._put_block(first + done)

    def _put_block(self, stop: int) -> None:
        """Write the records that wait, up to the number ``stop``."""
        if stop == self._first:
            return
        arrays = map(b"".join, self._arrays.values())
        parts = [data + bytes(-len(data) % 8) for data in arrays]
        num_places = len(self._strings) * (stop - self._first + 1)
        place = sum(map(len, parts)) + PLACE_BYTES * num_places
        for own in self._strings.values():
            places = place + np.cumsum([0, *map(len, own)])
            parts.append(places.astype("<i8").tobytes())
            place = int(places[-1])
        for own in self._strings.values():
            parts += own
        self._num_blocks += 1
        if self._num_blocks % REMAP_BLOCKS == 0:  # the same size: only to map the file again
            self._environment.set_mapsize(self._environment.info()["map_size"])
        self._put(self._first.to_bytes(8, "big"), b"".join(parts))
        for own in (*self._arrays.values(), *self._strings.values()):
            own.clear()
        self._first, self._waiting_bytes = stop, 0

    def _finish(self, manifest: str) -> None:
        self._put_block(self._num_written)
        self._put(MANIFEST_KEY, manifest.encode())
        self._environment.sync(True)
        self._environment.close()

    def _drop(self) -> None:
        self._environment.close()

    def _put(self, key: bytes, value: bytes) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    transaction.put(key, value, append=True)
                return
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except lmdb.Error as error:  # LMDB reports a full disk as EIO, without its errno
                raise OSError(28, f"LMDB cannot write ({error})") from error


@final
class OpenLMDB(file_store.OpenFile):
    """The blocks of a mapped file. DataError D102, D103 or D105 if it is no intact store."""

    def __init__(self, path: str) -> None:
        file, keys, offsets, sizes = values_of(path)
        if keys[-1:] != [MANIFEST_KEY] or any(len(key) != len(MANIFEST_KEY) for key in keys):
            what = "is an LMDB file, but not a Paceline store"
            raise DataError(103, path, what, lmdb_advice(path))
        last = int(offsets[-1])
        manifest = file_store.from_json(path, bytes(file[last : last + int(sizes[-1])]))
        super().__init__(manifest)
        self.path = path
        # Of each block: the number of its first record, where it lies, and its bytes.
        firsts = np.frombuffer(b"".join(keys[:-1]), ">i8").astype(np.int64)
        offsets, sizes = offsets[:-1], sizes[:-1]
        if manifest.first_key is None:
            self.fields[KEYS] = file_store.KEY
        count = manifest.num_records
        raw = {name: field for name, field in self.fields.items() if field.encoding == "raw"}
        units = {CRCS: CRC_BYTES} | {name: file_store.num_bytes(raw[name]) for name in raw}
        self._strings = [name for name in self.fields if name not in units]
        begins: dict[str, np.ndarray] = {}
        end = offsets
        is_whole = firsts[:1].tolist() == [0] * min(1, count)
        if is_whole and max(count, *units.values()) <= len(file):  # a hostile manifest has any
            counts = np.diff(firsts, append=count)
            for name, unit in units.items():
                begins[name] = end
                end = end + -(-counts * unit // 8) * 8
            for name in self._strings:
                begins[name] = end
                end = end + PLACE_BYTES * (counts + 1)
            # The records of each block, if all but the last one have equally many.
            is_even = np.all(counts[:-1] == counts[:1]) and np.all(counts[-1:] <= counts[:1])
            self._capacity = int(counts[0]) if count and is_even else 0
            left = offsets + sizes - end
            fits = left >= 0 if self._strings else left == 0
            is_whole = bool(np.all(counts > 0) and np.all(fits))
        if not is_whole or not begins:
            what = f"its blocks do not hold the {count} records of its manifest"
            raise DataError(105, path, what, "pack it again")
        self._firsts, self._offsets = torch.from_numpy(firsts), torch.from_numpy(offsets)
        self._sizes = torch.from_numpy(sizes)
        self._begins = {name: torch.from_numpy(begin) for name, begin in begins.items()}
        self._heads = torch.from_numpy(end - offsets)  # bytes of each block before its strings
        flat = torch.from_numpy(file)
        self._gather_crcs = Gather(flat, 1, (), torch.int32)
        self._gather_places = Gather(flat, 1, (2,), torch.int64)
        for name in self.fields:
            self._add(name, file)

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of each record's block, and its place in the block: int64 [B]."""
        check_range(indices, self.manifest.num_records)
        if self._capacity:
            blocks = indices // self._capacity
            return blocks, indices - blocks * self._capacity
        blocks = torch.searchsorted(self._firsts, indices.contiguous(), right=True) - 1
        return blocks, indices - self._firsts[blocks]

    def _places(self, name: str, rows: tuple[Tensor, Tensor], num_bytes: int) -> Tensor:
        blocks, places = rows
        return self._begins[name][blocks] + places * num_bytes

    def places(self, name: str, rows: tuple[Tensor, Tensor]) -> Tensor:
        return self._places(name, rows, self.gathers[name].num_bytes)

    def spans(self, name: str, rows: tuple[Tensor, Tensor]) -> tuple[np.ndarray, np.ndarray]:
        blocks, _ = rows
        starts, stops = self._gather_places(self._places(name, rows, PLACE_BYTES)).unbind(1)
        is_bad = (starts < self._heads[blocks]) | (stops < starts) | (stops > self._sizes[blocks])
        lengths = stops - starts
        row_bytes = self.row_bytes[name]
        if row_bytes != 1:
            is_bad |= lengths % row_bytes != 0
            lengths = lengths // row_bytes
        if is_bad.any():
            bad = int(is_bad.int().argmax())
            where = f"{self.path}: record {int(self._firsts[blocks[bad]] + rows[1][bad])}"
            raise DataError(105, where, "it does not lie in its block", "pack it again")
        return (self._offsets[blocks] + starts).numpy(), lengths.numpy()

    def ask(self, rows: tuple[Tensor, Tensor]) -> None:
        for name in self._strings:
            self._gather_places.ask(self._places(name, rows, PLACE_BYTES))
        super().ask(rows)

    def differs(self, indices: Tensor, crcs: np.ndarray) -> np.ndarray:
        rows, keys = self.rows(indices), None
        if KEYS in self.fields:
            keys = self.values(KEYS, rows)
        own = self._gather_crcs(self._places(CRCS, rows, CRC_BYTES)).numpy().view("<u4")
        return own != _numbered_and_keyed(crcs, indices.numpy(), keys)


def _numbered_and_keyed(
    crcs: np.ndarray, numbers: np.ndarray, keys: Sequence[Any] | None
) -> np.ndarray:
    # Numbers are 8 bytes, big-endian.
    crcs = file_store.extended_crcs(crcs, numbers.astype(">u8"))
    return crcs if keys is None else file_store.extended_crcs(crcs, keys)


class Meta(NamedTuple):
    """The newest meta page of an LMDB file."""

    page_bytes: int
    num_pages: int
    root: int  # the number of the tree's root page
    num_values: int


def read_meta(path: str) -> Meta:
    """Read the meta page. DataError D101, D102 if the file is truncated or no LMDB 0.9 file."""
    head = files.read_head(path, 1 << 17)
    size = os.path.getsize(path)
    words = np.frombuffer(head[:META_BYTES].ljust(META_BYTES, b"\0"), "<u4")
    page_bytes, again = int(words[10]), "pack it again"
    if words[6] == foreign.LMDB_MAGIC:  # LMDB 1.0's pages have longer headers
        what = f"LMDB 1.0's data version {words[7]}, this reads {DATA_VERSION}"
        raise DataError(102, path, what, again)
    if len(head) < META_BYTES or words[4] != foreign.LMDB_MAGIC:
        fix = "give an LMDB file, such as 'paceline pack output=lmdb' makes"
        raise DataError(102, path, "not an LMDB file", fix)
    if page_bytes not in (1 << n for n in range(8, 17)) or len(head) < page_bytes + META_BYTES:
        what = f"truncated: it has {size} bytes, not even two pages"
        raise DataError(102, path, what, again)
    newest = max((0, page_bytes), key=lambda start: struct.unpack_from("<Q", head, start + 144)[0])
    (version,) = struct.unpack_from("<I", head, newest + 20)
    num_values, root, last_page = struct.unpack_from("<3Q", head, newest + 120)
    needed = (last_page + 1) * page_bytes
    if version != DATA_VERSION:
        what = f"LMDB's data version {version}, this reads {DATA_VERSION}"
        raise DataError(102, path, what, again)
    if needed > size:  # reading a map beyond the end of its file kills the process
        raise DataError(102, path, f"truncated: expected {needed} bytes, have {size}", again)
    return Meta(page_bytes, last_page + 1, root, num_values)


def values_of(path: str) -> tuple[np.ndarray, list[bytes], np.ndarray, np.ndarray]:
    """Map a file (uint8 [size]) and find all its values.

    Return the map, their keys in order, where each value begins, and its bytes: int64 [values].
    DataError D101, D102 if the file is damaged or has named databases.
    """
    meta = read_meta(path)
    # Mode "c" shares the page cache. Torch gets a writable array that cannot change the file.
    file = np.memmap(path, np.uint8, "c", shape=(meta.num_pages * meta.page_bytes,))
    keys: list[bytes] = []
    places = [np.empty((2, 0), np.int64)]
    try:
        level = [] if meta.root == NO_ROOT else [meta.root]
        num_seen = 1
        while level and _page(file, level[0], meta)[10] & BRANCH:
            headers = [_nodes(_page(file, number, meta), BRANCH)[1] for number in level]
            low, middle, high, _ = np.concatenate(headers).T
            level = (low | middle << 16 | high << 32).tolist()
            num_seen += len(level)
            if num_seen > meta.num_pages:
                raise ValueError("more pages than the file has")
        for number in level:  # the leaves, from left to right
            page = _page(file, number, meta)
            starts, header = _nodes(page, LEAF)
            if np.any(header[:, 2] & ~BIG_DATA):
                raise ValueError("it has named databases, or several values under a key")
            key_bytes, data = header[:, 3], page.tobytes()
            spans = zip((starts + 8).tolist(), key_bytes.tolist(), strict=True)
            keys += [data[start : start + size] for start, size in spans]
            in_page = starts + 8 + key_bytes
            offsets = number * meta.page_bytes + in_page
            is_big = header[:, 2] == BIG_DATA  # the value lies on pages of its own
            numbers = page[in_page[is_big][:, None] + np.arange(8)].view("<i8").ravel()
            if np.any(numbers < 2) or np.any(numbers >= meta.num_pages):
                raise ValueError("a value's page is beyond the file")
            offsets[is_big] = numbers * meta.page_bytes + HEADER_BYTES
            places.append(np.stack([offsets, header[:, 0] | header[:, 1] << 16]))
        offsets, sizes = np.concatenate(places, axis=1)
        if np.any(offsets + sizes > len(file)) or np.any(offsets < 0):
            raise ValueError("a value reaches beyond the file")
        if len(keys) != meta.num_values:
            raise ValueError(f"{len(keys)} values, {meta.num_values} announced")
    except (ValueError, IndexError) as error:
        what = f"its tree is damaged ({error})"
        raise DataError(102, path, what, "pack or write it again") from error
    return file, keys, offsets, sizes


def _page(file: np.ndarray, number: int, meta: Meta) -> np.ndarray:
    if not 1 < number < meta.num_pages:
        raise ValueError(f"page {number} of {meta.num_pages}")
    return file[number * meta.page_bytes : (number + 1) * meta.page_bytes]


def _nodes(page: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    # Headers are int64 [n, 4]: two words of the size or page number, flags, size of the key.
    words = page.view("<u2")
    if not words[5] & kind or words[5] & OVERFLOW:
        raise ValueError("a page of another kind")
    num_nodes = (int(words[6]) - HEADER_BYTES) // 2
    starts = words[HEADER_BYTES // 2 :][: max(0, num_nodes)].astype(np.int64)
    return starts, words[(starts // 2)[:, None] + np.arange(4)].astype(np.int64)


@final
class ForeignLMDB:
    """The values of any LMDB file, or of a folder that holds ``data.mdb``. Picklable."""

    def __init__(self, path: str) -> None:
        self.path = os.path.join(path, foreign.IN_FOLDER) if os.path.isdir(path) else path
        _, keys, self.offsets, self.sizes = values_of(self.path)
        self.keys = [key.decode("utf-8", "surrogateescape") for key in keys]

    def read(self, number: int) -> bytes:
        """Return a value by its place in the order of the keys. DataError D101."""
        try:
            with open(self.path, "rb") as file:
                file.seek(int(self.offsets[number]))
                return file.read(int(self.sizes[number]))
        except OSError as error:
            raise files.unreadable(self.path, error) from error


def key_expression(pattern: str) -> re.Pattern[str]:
    """Return an expression whose only group matches what the keys of a record share.

    In a pattern, ``%d`` and ``%09d`` are numbers, ``%s`` any text, ``%%`` a percent sign.
    """
    known = {"%s": "(.+)", "%d": r"(\d+)", "%%": "%"}
    parts: list[str] = []
    for part in re.split(f"({PLACEHOLDER})", pattern):
        if re.fullmatch(r"%0\d+d", part):
            parts.append(rf"(\d{{{int(part[2:-1])},}})")
        else:
            parts.append(known.get(part, re.escape(part)))
    return re.compile("".join(parts), re.DOTALL | re.ASCII)


def lmdb_advice(path: str) -> str:
    """Say how to pack another program's file: by a command, or by ``input=function``."""
    file = ForeignLMDB(path)
    places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # by texts around a number
    widths: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for place, key in enumerate(file.keys):
        if match := LAST_NUMBER.fullmatch(key):
            before, number, after = match.groups()
            places[before, after].append(place)
            widths[before, after].add(len(number))
    most = max(map(len, places.values()), default=0)
    fields: dict[str, str] = {}
    for (before, after), own in places.items():
        first = file.read(own[0])
        is_array = is_image(first) or first.startswith(foreign.NPY)
        is_value = is_array or foreign.short_text(first) is not None
        if len(own) == most and is_value and foreign.is_quotable(before + after):
            width = f"0{min(widths[before, after])}" if len(widths[before, after]) == 1 else ""
            name = before + after or ("image" if is_image(first) else LABEL)
            parts = (text.replace("%", "%%") for text in (before, after))
            fields[foreign.field_name(name, fields)] = f"%{width}d".join(parts)
    if not 0 < len(fields) <= foreign.MOST_FIELDS:
        return foreign.OTHER_WAY
    words = ("input=lmdb", f"input.path={path}", foreign.fields_word(fields))
    return foreign.pack_command(path, *words)
