"""Where LMDB keeps its values, beside what the library says."""

import struct
from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import DataError
from framework.store import lmdb_store
from framework.store.lmdb_store import LMDBStore, read_meta, values_of
from tests.conftest import make_records, write_store
from tests.contract.cases import plain, write_case
from tests.store.fuzz import flips, judge, truncations

PAGE = 4096
KINDS = ["lmdb", "lmdb_images"]


def _key(index):
    return index.to_bytes(8, "big")


def _written(path, items, **options):
    """Write an LMDB file with the library itself and return its path.

    Each entry of ``items`` is a transaction: a dict to put, or a list of keys to delete.
    """
    Path(path).unlink(missing_ok=True)
    options = {"map_size": 1 << 30, "lib_version": 0, **options}
    with lmdb.open(path, subdir=False, lock=False, sync=False, **options) as environment:
        for batch in items:
            with environment.begin(write=True) as transaction:
                for key in batch:
                    transaction.put(key, batch[key]) if isinstance(
                        batch, dict
                    ) else transaction.delete(key)
    return path


def _library(path):
    """Return all of the file's items as the library reads them."""
    with (
        lmdb.open(path, subdir=False, lock=False, readonly=True, lib_version=0) as environment,
        environment.begin() as transaction,
    ):
        return list(transaction.cursor())


def _ours(path):
    """Return all of the file's items as our table of values finds them."""
    file, keys, offsets, sizes = values_of(path)
    places = zip(keys, offsets.tolist(), sizes.tolist(), strict=True)
    return [(key, bytes(file[start : start + size])) for key, start, size in places]


def _edit(path, at, form, *values):
    """Write numbers into the file at byte ``at``."""
    data = bytearray(Path(path).read_bytes())
    struct.pack_into(form, data, at, *values)
    Path(path).write_bytes(data)


@given(st.lists(st.integers(0, 9000), max_size=60), st.integers(0, 2**40), st.integers(0, 255))
def test_the_table_says_what_the_library_reads_whatever_the_sizes(sizes, first, filling):
    items = {
        _key(first + 7 * number): bytes([(filling + number) % 256]) * size
        for number, size in enumerate(sizes)
    }
    path = _written("x.lmdb", [items])
    assert _ours(path) == _library(path) == list(items.items())


@pytest.mark.parametrize("size", [0, 2025, 2026, 2027, 4081])
def test_values_are_found_in_the_leaf_or_on_pages_of_their_own(size):
    items = {_key(number): bytes([number]) * (size + number % 2) for number in range(50)}
    path = _written("x.lmdb", [items])
    assert _ours(path) == list(items.items())


@pytest.mark.parametrize("count", [0, 1, 113, 114, 20_000])
def test_trees_of_any_depth_are_walked(count):
    items = {_key(number): struct.pack("<q", number) for number in range(count)}
    assert _ours(_written("x.lmdb", [items])) == list(items.items())


@pytest.mark.parametrize("kind", KINDS)
def test_any_flipped_bit_is_refused_found_or_harmless(kind):
    path, records = write_case(kind, 40)
    counts = judge(LMDBStore, "lmdb", flips(Path(path).read_bytes(), 100), plain(records), 40)
    assert counts.keys() <= {"right", "found", "refused"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_is_refused(kind):
    path, records = write_case(kind, 40)
    assert judge(
        LMDBStore, "lmdb", truncations(Path(path).read_bytes(), 50), plain(records), 40
    ) == {"refused": 50}


def test_a_branch_that_is_its_own_child_ends(monkeypatch):
    monkeypatch.setattr(lmdb_store, "BLOCK_BYTES", 1000)
    path = write_store("x.lmdb", make_records(3000))
    root = read_meta(path).root
    first = struct.unpack_from("<H", Path(path).read_bytes(), root * PAGE + 16)[0]
    _edit(path, root * PAGE + first, "<3H", root & 0xFFFF, root >> 16, 0)
    with pytest.raises(DataError, match=r"D102.*its tree is damaged"):
        _ = LMDBStore(path).manifest


def test_lmdb_1_0_is_named():
    path = _written("x.lmdb", [{_key(0): b"x"}], lib_version=1)
    with pytest.raises(DataError, match=r"D102.*x\.lmdb.*LMDB 1\.0's data version 3, this reads 1"):
        read_meta(path)
