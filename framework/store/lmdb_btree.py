"""LMDB 0.9's file format, read only: where every value lies in the file, so that a batch is gathered straight from a memory map.

A store of ours never changes once it has its name, so no transaction, reader table or lock is needed, and neither are the limits they
bring (one environment per file and process, none across a fork). Three times as fast as a lookup per record through the library.
Source: lmdb's ``mdb.c``: MDB_meta, MDB_page and MDB_node of data version 1.
"""

import os
import struct
from typing import NamedTuple

import numpy as np

from framework.errors import DataError
from framework.store.identity import nearest

META_MAGIC = 0xBEEFC0DE
DATA_VERSION = 1
LATER_MAGIC_AT = 24  # LMDB 1.0's pages have longer headers
HEADER_BYTES = 16  # of a page; an overflow page's value starts behind it
KEY_BYTES = 8
BRANCH, LEAF, OVERFLOW, BIG_DATA = 1, 2, 4, 1
NO_ROOT = (1 << 64) - 1


class Meta(NamedTuple):
    """The newest meta page: page size and number of pages in use, root page, number of values."""

    page_bytes: int
    num_pages: int
    root: int
    num_values: int


def read_meta(path: str) -> Meta:
    """Also compares what the meta page promises with the file's size: reading a map past the file's end kills the process (SIGBUS).

    DataError D101, D102.
    """
    if not os.path.isfile(path):
        raise DataError(
            101,
            path,
            f"no such file{nearest(path)}",
            "give the path of a packed store, or make one with 'paceline pack'",
        )
    size = os.path.getsize(path)
    try:
        with open(path, "rb") as file:
            head = file.read(1 << 17)
    except OSError as error:
        raise DataError(
            101, path, f"cannot be read: {error.strerror}", "look at its permissions and the disk"
        ) from error
    if len(head) >= 152 and struct.unpack_from("<I", head, LATER_MAGIC_AT)[0] == META_MAGIC:
        version = struct.unpack_from("<I", head, LATER_MAGIC_AT + 4)[0]
        raise DataError(
            102,
            path,
            f"LMDB 1.0's data version {version}, this reads {DATA_VERSION}",
            "pack it again",
        )
    if len(head) < 152 or struct.unpack_from("<I", head, 16)[0] != META_MAGIC:
        raise DataError(
            102, path, "not an LMDB file", "give a file made by 'paceline pack output=lmdb'"
        )
    page_bytes = struct.unpack_from("<I", head, 40)[0]
    if page_bytes not in (1 << n for n in range(8, 17)) or len(head) < page_bytes + 152:
        raise DataError(
            102, path, f"truncated: it has {size} bytes, not even two pages", "pack it again"
        )
    newest = max((0, page_bytes), key=lambda start: struct.unpack_from("<Q", head, start + 144)[0])
    version = struct.unpack_from("<I", head, newest + 20)[0]
    if version != DATA_VERSION:
        raise DataError(
            102, path, f"LMDB's data version {version}, this reads {DATA_VERSION}", "pack it again"
        )
    num_values, root, last_page = struct.unpack_from("<3Q", head, newest + 120)
    if (last_page + 1) * page_bytes > size:
        raise DataError(
            102,
            path,
            f"truncated: expected {(last_page + 1) * page_bytes} bytes, have {size}",
            "pack it again",
        )
    return Meta(page_bytes, last_page + 1, root, num_values)


def value_table(
    path: str, file: np.ndarray, meta: Meta
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(keys, offsets, sizes) of all values in the order of their keys, of 8 bytes each: uint64, int64, int64 [num_values].

    ``file``: uint8 [size], the mapped file. Every value lies inside the file, and keys ascend, or it is a DataError D102.
    """
    try:
        leaves = [_leaf(file, page, meta) for page in _leaf_pages(file, meta)]
        empty = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
        keys, offsets, sizes = (
            np.concatenate(column) for column in zip(empty, *leaves, strict=True)
        )
        if len(keys) != meta.num_values or np.any(keys[1:] <= keys[:-1]):
            raise ValueError(f"{len(keys)} values in order, {meta.num_values} announced")
        if np.any(offsets + sizes > meta.num_pages * meta.page_bytes) or np.any(offsets < 0):
            raise ValueError("a value reaches beyond the file")
    except (ValueError, IndexError) as error:
        raise DataError(102, path, f"its tree is damaged ({error})", "pack it again") from error
    return keys, offsets, sizes


def any_values(path: str) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """Return (keys, offsets, sizes) of all values of an LMDB file that anybody wrote, in the order of its keys.

    Raises:
        DataError: D101; D102 for what is no LMDB file, is damaged, or has named databases.

    """
    meta = read_meta(path)
    file = np.memmap(path, np.uint8, "r", shape=(meta.num_pages * meta.page_bytes,))
    keys, places = list[bytes](), list[tuple[int, int]]()
    try:
        for number in _leaf_pages(file, meta):
            _add_leaf(file, number, meta, keys, places)
        offsets, sizes = np.array(places, np.int64).reshape(-1, 2).T
        if np.any(offsets + sizes > len(file)):
            raise ValueError("a value reaches beyond the file")
    except (ValueError, IndexError) as error:
        raise DataError(102, path, f"its tree cannot be read ({error})", "make it anew") from error
    return keys, offsets, sizes


def _add_leaf(
    file: np.ndarray, number: int, meta: Meta, keys: list[bytes], places: list[tuple[int, int]]
) -> None:
    page = _page(file, number, meta)
    starts, header = _nodes(page, LEAF)
    data = page.tobytes()
    for start, (low, high, flags, key_bytes) in zip(starts.tolist(), header.tolist(), strict=True):
        if flags & ~BIG_DATA:
            raise ValueError("it has named databases, or several values under a key")
        value = start + 8 + key_bytes
        keys.append(data[start + 8 : value])
        offset = number * meta.page_bytes + value
        if flags & BIG_DATA:
            (big,) = struct.unpack("<Q", data[value : value + 8].ljust(8, b"\xff"))
            if not 1 < big < meta.num_pages:
                raise ValueError("a value's page is beyond the file")
            offset = big * meta.page_bytes + HEADER_BYTES
        places.append((offset, low | high << 16))


def _leaf_pages(file: np.ndarray, meta: Meta) -> list[int]:
    """Numbers of the leaf pages, from left to right."""
    level = [] if meta.root == NO_ROOT else [meta.root]
    seen = len(level)
    while level and _flags(file, level[0], meta) & BRANCH:
        level = [child for page in level for child in _children(file, page, meta)]
        seen += len(level)
        if seen > meta.num_pages:
            raise ValueError("more pages than the file has")
    return level


def _page(file: np.ndarray, number: int, meta: Meta) -> np.ndarray:
    if not 1 < number < meta.num_pages:
        raise ValueError(f"page {number} of {meta.num_pages}")
    return file[number * meta.page_bytes : (number + 1) * meta.page_bytes]


def _flags(file: np.ndarray, number: int, meta: Meta) -> int:
    return int(_page(file, number, meta)[10])


def _nodes(page: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts of the nodes in the page, their four header words lo, hi, flags, key size as int64 [n, 4])."""
    words = page.view("<u2")
    if not words[5] & kind or words[5] & OVERFLOW:
        raise ValueError("a page of another kind")
    num_nodes = (int(words[6]) - HEADER_BYTES) // 2
    starts = words[HEADER_BYTES // 2 :][: max(0, num_nodes)].astype(np.int64)
    return starts, words[(starts // 2)[:, None] + np.arange(4)].astype(np.int64)


def _children(file: np.ndarray, number: int, meta: Meta) -> list[int]:
    _, header = _nodes(_page(file, number, meta), BRANCH)
    return (header[:, 0] | header[:, 1] << 16 | header[:, 2] << 32).tolist()


def _leaf(file: np.ndarray, number: int, meta: Meta) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    page = _page(file, number, meta)
    starts, header = _nodes(page, LEAF)
    if np.any(header[:, 3] != KEY_BYTES) or np.any(header[:, 2] & ~BIG_DATA):
        raise ValueError("a key of another size")
    eight = np.arange(8)
    keys = page[(starts + 8)[:, None] + eight].view(">u8").ravel().astype(np.uint64)
    data = starts + 8 + KEY_BYTES
    big = header[:, 2] == BIG_DATA
    offsets = number * meta.page_bytes + data
    numbers = page[data[big][:, None] + eight].view("<i8").ravel()
    if np.any(numbers < 2) or np.any(numbers >= meta.num_pages):
        raise ValueError("a value's page is beyond the file")
    offsets[big] = numbers * meta.page_bytes + HEADER_BYTES
    return keys, offsets, header[:, 0] | header[:, 1] << 16
