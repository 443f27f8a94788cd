"""Blocks of records in an LMDB file, and the table of where its values lie."""

import os
import struct
from contextlib import suppress
from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Field, Manifest, NumberKeys
from framework.errors import DataError
from framework.store import file_store, lmdb_store
from framework.store.lmdb_store import LMDBStore, LMDBWriter, read_meta, values_of
from tests.conftest import FIELDS, edited_manifest, make_records, write_store
from tests.contract.cases import plain, rows, write_case


def put(path, changes):
    """Change values of the file at ``path`` with the library itself; None deletes."""
    with (
        lmdb.open(path, subdir=False, lock=False, lib_version=0) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in changes.items():
            transaction.put(key, value) if value is not None else transaction.delete(key)


def _key(index):
    return index.to_bytes(8, "big")


@pytest.mark.parametrize("kind", ["lmdb", "lmdb_images"])
def test_a_missing_block_is_noticed(kind, monkeypatch):
    monkeypatch.setattr(lmdb_store, "BLOCK_BYTES", 100)  # of one record
    path, _ = write_case(kind, 5)
    put(path, {_key(3): None})
    every, bad = torch.arange(5), [2, 3]
    with suppress(DataError):
        store = LMDBStore(path)
        bad = store.damaged(every, store.read(every))
    assert bad == [2, 3]


@pytest.mark.parametrize("value", [b"", b"abc", b"x" * 64, b"\xff" * 2000])
def test_a_record_that_does_not_lie_in_its_block_is_named(value, monkeypatch):
    monkeypatch.setattr(lmdb_store, "BLOCK_BYTES", 100)
    path, _ = write_case("lmdb_images", 5)
    put(path, {_key(3): value})
    with pytest.raises(DataError, match=r"D105.*lmdb_images\.lmdb: .*block"):
        LMDBStore(path).read(torch.arange(5))


def test_a_field_whose_size_overflows_to_the_stored_size_is_refused():
    path = write_store("x.lmdb", {"x": np.zeros((1, 48), np.uint8)}, {"x": Field("uint8", (48,))})
    field = {
        "dtype": "uint8",
        "shape": [16, 3 + (1 << 60)],
        "encoding": "raw",
        "kind": "raw",
    }  # 48 modulo 2^64
    text = edited_manifest(file_store.to_json(LMDBStore(path).manifest), fields={"x": field})
    put(path, {b"manifest": text.encode()})
    with pytest.raises(DataError, match=r"D105.*x\.lmdb: its blocks do not hold"):
        LMDBStore(path).read(torch.tensor([0]))


def test_a_store_larger_than_its_first_map_is_written(monkeypatch):
    monkeypatch.setattr(lmdb_store, "FIRST_MAP_BYTES", 1 << 16)
    records = make_records(3000)
    store = LMDBStore(write_store("x.lmdb", records))
    assert plain(store.read(torch.tensor([2999, 0]))) == rows(records, [2999, 0])
    store.close()


def test_a_value_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(lmdb_store, "MAX_VALUE_BYTES", 99)
    with pytest.raises(DataError, match=r"D116.*\.lmdb: record 0.*an LMDB value holds 99"):
        write_case("lmdb_images", 300)


def test_writing_takes_no_lock_file():
    writer = LMDBWriter("x.lmdb", fields=FIELDS, num_records=1)
    assert len(os.listdir()) == 1
    writer.abort()
    assert os.listdir() == []


COUNT = 50


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let a block hold 7 records of ``FIELDS``."""
    record = {name: values[:1] for name, values in make_records(1).items()}
    num_bytes = sum(values.nbytes for values in record.values())
    monkeypatch.setattr(lmdb_store, "BLOCK_BYTES", 7 * (num_bytes + 4))


def write(path="x.lmdb", count=COUNT, first_key=100, step=9):
    records = make_records(count)
    writer = LMDBWriter(path, fields=FIELDS, num_records=count)
    for start in range(0, count, step):
        stop = min(start + step, count)
        part = {name: values[start:stop] for name, values in records.items()}
        writer.write(part, NumberKeys(first_key + start, first_key + stop))
    writer.close(Manifest(count, FIELDS, ["a", "b", "c"]))
    return path, records


@pytest.mark.parametrize("count", [1, 6, 7, 8, 49, 50])
def test_records_come_back_from_blocks(count):
    path, records = write(count=count)
    store = LMDBStore(path)
    order = torch.randperm(count).repeat(2)
    assert plain(store.read(order)) == rows(records, order.tolist())
    assert store.damaged(order, store.read(order)) == []
    assert (store.key(count - 1), store.manifest.first_key) == (str(99 + count), 100)
    assert len(_library(path)) == -(-count // 7) + 1


def test_a_field_is_read_for_all_records_and_pixels_are_viewed():
    path, records = write()
    store = LMDBStore(path)
    assert torch.equal(store.column("label"), torch.from_numpy(records["label"]))
    views = store.read(torch.tensor([49, 3]), views=["image"])["image"]
    assert [view.tolist() for view in views] == records["image"][[49, 3]].tolist()


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: v + b"x", lambda _: b""])
def test_a_block_of_another_size_is_named(change):
    path, _ = write()
    put(path, {_key(7): change(dict(_library(path))[_key(7)])})
    with pytest.raises(DataError, match=r"D105.*x\.lmdb"):
        _ = LMDBStore(path).manifest


def test_blocks_in_each_others_place_are_found():
    path, _ = write()
    values = dict(_library(path))
    put(path, {_key(7): values[_key(14)], _key(14): values[_key(7)]})
    store = LMDBStore(path)
    every = torch.arange(COUNT)
    assert store.damaged(every, store.read(every)) == list(range(7, 21))


PAGE = 4096


def _written(path, items, **options):
    """Write an LMDB file by its library: a transaction an item, a dict to put or keys to drop."""
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
