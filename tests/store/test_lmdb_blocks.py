import lmdb
import pytest
import torch

from framework.contracts.records import Manifest, NumberKeys
from framework.errors import DataError
from framework.store import lmdb_store
from framework.store.lmdb_store import LMDBStore, LMDBWriter
from tests.conftest import FIELDS, make_records
from tests.contract.cases import plain, rows

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


def put(path, changes):
    with (
        lmdb.open(path, subdir=False, lock=False, lib_version=0) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in changes.items():
            transaction.put(key, value) if value is not None else transaction.delete(key)


def key(number):
    return number.to_bytes(8, "big")


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
    put(path, {key(7): change(values_of(path)[key(7)])})
    with pytest.raises(DataError, match=r"D105.*x\.lmdb"):
        _ = LMDBStore(path).manifest


def test_blocks_in_each_others_place_are_found():
    path, _ = write()
    values = values_of(path)
    put(path, {key(7): values[key(14)], key(14): values[key(7)]})
    store = LMDBStore(path)
    every = torch.arange(COUNT)
    assert store.damaged(every, store.read(every)) == list(range(7, 21))
