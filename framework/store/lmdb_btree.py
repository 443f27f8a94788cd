"""Reads where each value of an LMDB 0.9 file lies, so that a memory map serves batches.

A store never changes under its name. So no transaction, reader table or lock is needed, and their
limits (one environment per file and process, none across a fork) do not apply. This is three times
as fast as one library lookup per record.

Source: lmdb's ``mdb.c``: MDB_meta, MDB_page and MDB_node of data version 1.
"""

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from framework.errors import DataError
from framework.store.files import read_head
from framework.store.gather import ask_pages, map_of

META_MAGIC = 0xBEEFC0DE
DATA_VERSION = 1
META_BYTES = 152  # of a page header and the meta data behind it
HEADER_BYTES = 16  # of a page; the value of an overflow page starts behind it
KEY_BYTES = 8
PAGES_AT_A_TIME = 8192  # that the disk is asked for
BRANCH, LEAF, OVERFLOW, BIG_DATA = 1, 2, 4, 1
NO_ROOT = (1 << 64) - 1


class Meta(NamedTuple):
    """The newest meta page of an LMDB file. ``root`` is the number of the tree's root page."""

    page_bytes: int
    num_pages: int
    root: int
    num_values: int


def read_meta(path: str) -> Meta:
    """Read the meta page, and check that the file is as long as the page says.

    Reading a map beyond the end of its file kills the process (SIGBUS).

    Raises:
        DataError: D101 if the file is missing; D102 if it is truncated or no LMDB 0.9 file.
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


class NumberedValues(NamedTuple):
    """Where the values of a mapped file are."""

    keys: np.ndarray  # the number of each value, ascending: uint64
    offsets: np.ndarray  # where each value begins in the map: int64
    sizes: np.ndarray  # bytes: int64


def value_table(path: str, file: np.ndarray, meta: Meta) -> NumberedValues:
    """Return where all values of a mapped file are.

    Raises:
        DataError: D102 if a key is not of 8 bytes, or a value reaches beyond the file.
    """

    def numbers(leaf: _Leaf) -> np.ndarray:
        if np.any(leaf.key_bytes != KEY_BYTES):
            raise ValueError("a key of another size")
        parts = leaf.page[(leaf.starts + 8)[:, None] + np.arange(KEY_BYTES)]
        return parts.view(">u8").ravel().astype(np.uint64)

    blocks, offsets, sizes = _table(path, file, meta, numbers)
    keys = np.concatenate([np.empty(0, np.uint64), *blocks])
    if len(keys) != meta.num_values or np.any(keys[1:] <= keys[:-1]):
        raise _damaged(path, f"{len(keys)} values in order, {meta.num_values} announced")
    return NumberedValues(keys, offsets, sizes)


def any_values(path: str) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """Return keys, offsets and sizes of all values of any LMDB file, in the order of its keys.

    Raises:
        DataError: D101 if the file is missing; D102 if it is damaged or has named databases.
    """

    def texts(leaf: _Leaf) -> list[bytes]:
        data = leaf.page.tobytes()
        starts = (leaf.starts + 8).tolist()
        spans = zip(starts, leaf.key_bytes.tolist(), strict=True)
        return [data[start : start + size] for start, size in spans]

    meta = read_meta(path)
    file = np.memmap(path, np.uint8, "r", shape=(meta.num_pages * meta.page_bytes,))
    blocks, offsets, sizes = _table(path, file, meta, texts)
    return [key for block in blocks for key in block], offsets, sizes


def _table(
    path: str, file: np.ndarray, meta: Meta, keys_of: Callable[["_Leaf"], Any]
) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """Return the keys of each leaf, and the offsets and sizes of all values."""
    keys: list[Any] = []
    places = [np.empty((2, 0), np.int64)]
    try:
        for leaf in _leaves(file, meta):
            keys.append(keys_of(leaf))
            places.append(leaf.places)
        offsets, sizes = np.concatenate(places, axis=1)
        if np.any(offsets + sizes > len(file)) or np.any(offsets < 0):
            raise ValueError("a value reaches beyond the file")
    except (ValueError, IndexError) as error:
        raise _damaged(path, str(error)) from error
    return keys, offsets, sizes


def _damaged(path: str, why: str) -> DataError:
    return DataError(102, path, f"its tree is damaged ({why})", "pack or write it again")


class _Leaf(NamedTuple):
    page: np.ndarray
    starts: np.ndarray  # of the nodes in the page
    key_bytes: np.ndarray
    places: np.ndarray  # offsets in the file and sizes of the values: int64 [2, n]


def _leaves(file: np.ndarray, meta: Meta) -> Iterator[_Leaf]:
    """Yield the leaves of the tree, from left to right."""
    if meta.root == NO_ROOT:
        return
    level = [meta.root]
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
        for pages in torch.tensor(level).split(PAGES_AT_A_TIME):
            ask_pages(map_of(file), pages, meta.page_bytes, meta.page_bytes)
    for number in level:
        page = _page(file, number, meta)
        starts, header = _nodes(page, LEAF)
        if np.any(header[:, 2] & ~BIG_DATA):
            raise ValueError("it has named databases, or several values under a key")
        key_bytes = header[:, 3]
        values = starts + 8 + key_bytes
        offsets = number * meta.page_bytes + values
        is_big = header[:, 2] == BIG_DATA  # the value lies on pages of its own
        numbers = page[values[is_big][:, None] + np.arange(8)].view("<i8").ravel()
        if np.any(numbers < 2) or np.any(numbers >= meta.num_pages):
            raise ValueError("a value's page is beyond the file")
        offsets[is_big] = numbers * meta.page_bytes + HEADER_BYTES
        sizes = header[:, 0] | header[:, 1] << 16
        yield _Leaf(page, starts, key_bytes, np.stack([offsets, sizes]))


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
