"""Blocks of records in an LMDB file."""

import os
from contextlib import suppress

import lmdb
import numpy as np
import pytest
import torch

from framework.contracts.records import Field, Manifest, NumberKeys
from framework.errors import DataError
from framework.store import lmdb_store
from framework.store.file_store import to_json
from framework.store.lmdb_store import LMDBStore, LMDBWriter
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
    text = edited_manifest(to_json(LMDBStore(path).manifest), fields={"x": field})
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


def values_of(path):
    with (
        lmdb.open(path, subdir=False, lock=False, readonly=True, lib_version=0) as environment,
        environment.begin() as transaction,
    ):
        return dict(transaction.cursor())


@pytest.mark.parametrize("count", [1, 6, 7, 8, 49, 50])
def test_records_come_back_from_blocks(count):
    path, records = write(count=count)
    store = LMDBStore(path)
    order = torch.randperm(count).repeat(2)
    assert plain(store.read(order)) == rows(records, order.tolist())
    assert store.damaged(order, store.read(order)) == []
    assert (store.key(count - 1), store.manifest.first_key) == (str(99 + count), 100)
    assert len(values_of(path)) == -(-count // 7) + 1


def test_a_field_is_read_for_all_records_and_pixels_are_viewed():
    path, records = write()
    store = LMDBStore(path)
    assert torch.equal(store.column("label"), torch.from_numpy(records["label"]))
    views = store.read(torch.tensor([49, 3]), views=["image"])["image"]
    assert [view.tolist() for view in views] == records["image"][[49, 3]].tolist()


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: v + b"x", lambda _: b""])
def test_a_block_of_another_size_is_named(change):
    path, _ = write()
    put(path, {_key(7): change(values_of(path)[_key(7)])})
    with pytest.raises(DataError, match=r"D105.*x\.lmdb"):
        _ = LMDBStore(path).manifest


def test_blocks_in_each_others_place_are_found():
    path, _ = write()
    values = values_of(path)
    put(path, {_key(7): values[_key(14)], _key(14): values[_key(7)]})
    store = LMDBStore(path)
    every = torch.arange(COUNT)
    assert store.damaged(every, store.read(every)) == list(range(7, 21))
