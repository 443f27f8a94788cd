"""Reads where each value of an LMDB 0.9 file lies, so that a memory map serves batches.

A store never changes under its name. So no transaction, reader table or lock is needed, and their
limits (one environment per file and process, none across a fork) do not apply.

Source: lmdb's ``mdb.c``: MDB_meta, MDB_page and MDB_node of data version 1.
"""

import os
import struct
from typing import NamedTuple

import numpy as np

from framework.errors import DataError
from framework.store.files import read_head

META_MAGIC = 0xBEEFC0DE
DATA_VERSION = 1
META_BYTES = 152  # of a page header and the meta data behind it
HEADER_BYTES = 16  # of a page; the value of an overflow page starts behind it
BRANCH, LEAF, OVERFLOW, BIG_DATA = 1, 2, 4, 1
NO_ROOT = (1 << 64) - 1


class Meta(NamedTuple):
    """The newest meta page of an LMDB file. ``root`` is the number of the tree's root page."""

    page_bytes: int
    num_pages: int
    root: int
    num_values: int


class Values(NamedTuple):
    """The values of a mapped file in the order of their keys."""

    file: np.ndarray  # uint8 [bytes]
    keys: list[bytes]
    offsets: np.ndarray  # where each value begins in the file: int64
    sizes: np.ndarray  # bytes: int64


def read_meta(path: str) -> Meta:
    """Read the meta page, and check that the file is as long as the page says.

    Reading a map beyond the end of its file kills the process (SIGBUS). DataError D101 if the file
    is missing, D102 if it is truncated or no LMDB 0.9 file.
    """
    head = read_head(path, 1 << 17)
    size = os.path.getsize(path)
    words = np.frombuffer(head[:META_BYTES].ljust(META_BYTES, b"\0"), "<u4")
    page_bytes, again = int(words[10]), "pack it again"
    if len(head) >= META_BYTES and words[6] == META_MAGIC:  # LMDB 1.0's pages have longer headers
        what = f"LMDB 1.0's data version {words[7]}, this reads {DATA_VERSION}"
        raise DataError(102, path, what, again)
    if len(head) < META_BYTES or words[4] != META_MAGIC:
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
    if needed > size:
        raise DataError(102, path, f"truncated: expected {needed} bytes, have {size}", again)
    return Meta(page_bytes, last_page + 1, root, num_values)


def values_of(path: str) -> Values:
    """Map a file and find all its values.

    DataError D101 if the file is missing, D102 if it is damaged or has named databases.
    """
    meta = read_meta(path)
    # Mode "c" shares the page cache. Torch gets a writable array that cannot change the file.
    file = np.memmap(path, np.uint8, "c", shape=(meta.num_pages * meta.page_bytes,))
    keys: list[bytes] = []
    places = [np.empty((2, 0), np.int64)]
    try:
        for number in _leaf_pages(file, meta):
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
    return Values(file, keys, offsets, sizes)


def _leaf_pages(file: np.ndarray, meta: Meta) -> list[int]:
    """Return the numbers of the leaves of the tree, from left to right."""
    level = [] if meta.root == NO_ROOT else [meta.root]
    num_seen = 1
    while level and _page(file, level[0], meta)[10] & BRANCH:
        children: list[int] = []
        for number in level:
            _, header = _nodes(_page(file, number, meta), BRANCH)
            children += (header[:, 0] | header[:, 1] << 16 | header[:, 2] << 32).tolist()
        level = children
        num_seen += len(level)
        if num_seen > meta.num_pages:
            raise ValueError("more pages than the file has")
    return level


def _page(file: np.ndarray, number: int, meta: Meta) -> np.ndarray:
    if not 1 < number < meta.num_pages:
        raise ValueError(f"page {number} of {meta.num_pages}")
    return file[number * meta.page_bytes : (number + 1) * meta.page_bytes]


def _nodes(page: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the nodes of a page begin, and their headers.

    A header is int64 [n, 4]: two words of the size or page number, flags, size of the key.
    """
    words = page.view("<u2")
    if not words[5] & kind or words[5] & OVERFLOW:
        raise ValueError("a page of another kind")
    num_nodes = (int(words[6]) - HEADER_BYTES) // 2
    starts = words[HEADER_BYTES // 2 :][: max(0, num_nodes)].astype(np.int64)
    return starts, words[(starts // 2)[:, None] + np.arange(4)].astype(np.int64)
