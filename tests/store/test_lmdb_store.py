import os
import struct

import lmdb
import numpy as np
import pytest
import torch

from framework.contracts.records import Field
from framework.errors import DataError
from framework.store import lmdb_store as module
from framework.store.lmdb_store import LMDBStore, LMDBWriter
from framework.store.manifest import to_json
from tests.conftest import FIELDS, edited_manifest, make_records, write_store
from tests.contract.cases import plain, rows, write_case


def _put(path, key, value):
    """Change one value of the file at ``path`` with the library itself."""
    with (
        lmdb.open(path, subdir=False, lock=False, lib_version=0) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(key, value) if value is not None else transaction.delete(key)


def _key(index):
    return index.to_bytes(8, "big")


@pytest.mark.parametrize("kind", ["lmdb", "lmdb_images"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9999])
def test_a_truncated_store_is_named(kind, part):
    path, _ = write_case(kind, 300)
    os.truncate(path, int(os.path.getsize(path) * part))
    with pytest.raises(DataError, match=rf"D102.*{kind}\.lmdb"):
        LMDBStore(path).read(torch.arange(300))


@pytest.mark.parametrize("kind", ["lmdb", "lmdb_images"])
def test_a_missing_record_is_reported(kind):
    path, _ = write_case(kind, 5)
    _put(path, _key(3), None)
    with pytest.raises(DataError, match=rf"D105.*{kind}\.lmdb: 4 records, its manifest says 5"):
        LMDBStore(path).read(torch.arange(5))


@pytest.mark.parametrize("kind", ["lmdb", "lmdb_images"])
@pytest.mark.parametrize("value", [b"", b"abc", b"x" * 64, struct.pack("<2I", 48, 4) + b"y" * 52])
def test_a_record_whose_header_does_not_fit_is_named(kind, value):
    path, _ = write_case(kind, 5)
    _put(path, _key(3), value)
    with pytest.raises(DataError, match=rf"D105.*{kind}\.lmdb: record 3.*header"):
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
    _put(path, b"manifest", text.encode())
    with pytest.raises(DataError, match=r"D105.*x\.lmdb: record 0.*header"):
        LMDBStore(path).read(torch.tensor([0]))


def test_a_store_larger_than_its_first_map_is_written(monkeypatch):
    monkeypatch.setattr(module, "FIRST_MAP_BYTES", 1 << 16)
    records = make_records(3000)
    store = LMDBStore(write_store("x.lmdb", records))
    assert plain(store.read(torch.tensor([2999, 0]))) == rows(records, [2999, 0])
    store.close()


def test_a_value_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_VALUE_BYTES", 99)
    with pytest.raises(DataError, match=r"D116.*\.lmdb: record 0.*an LMDB value holds 99"):
        write_case("lmdb_images", 300)


def test_writing_takes_no_lock_file():
    writer = LMDBWriter("x.lmdb", fields=FIELDS, num_records=1)
    assert len(os.listdir()) == 1
    writer.abort()
    assert os.listdir() == []
