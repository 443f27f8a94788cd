"""What HDF5 and LMDB stores have in common."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import Field, Manifest
from framework.errors import DataError
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from framework.store.lmdb_store import LMDBStore, LMDBWriter
from tests.conftest import FIELDS, make_records, write_store
from tests.contract.cases import plain, rows

STORES = {"x.h5": HDF5Store, "x.lmdb": LMDBStore}
WRITERS = {"x.h5": HDF5Writer, "x.lmdb": LMDBWriter}
INTEGERS = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)]
DTYPES = [*INTEGERS, "float16", "float32", "float64", "bool", "complex64"]
each_kind = pytest.mark.parametrize("path", STORES)


@each_kind
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (8,), (2, 3)])
def test_every_number_type_comes_back_as_it_was(path, dtype, shape):
    values = (np.random.default_rng(0).random((5, *shape)) * 100).astype(dtype)
    write_store(path, {"x": values}, {"x": Field(dtype, shape)})
    stored = STORES[path](path).read(torch.tensor([4, 0, 4]))["x"]
    assert np.array_equal(stored.numpy(), values[[4, 0, 4]])
    assert stored.numpy().dtype == values.dtype


@each_kind
def test_a_store_is_pickled_without_its_maps(path):
    store = STORES[path](write_store(path, make_records(300)))
    expected = store.read(torch.arange(300))
    data = pickle.dumps(store)
    assert len(data) < Path(path).stat().st_size / 10
    assert plain(pickle.loads(data).read(torch.arange(300))) == plain(expected)
    store.close()
    assert plain(store.read(torch.tensor([7]))) == rows(make_records(300), [7])


@each_kind
def test_a_store_that_is_replaced_while_it_is_open_is_named(path):
    store = STORES[path](write_store(path, make_records(3)))
    store.read(torch.tensor([0]))
    store.check()
    write_store(path, make_records(4))
    store.close()
    with pytest.raises(DataError, match=rf"D117.*{path}"):
        store.read(torch.tensor([0]))


@each_kind
def test_a_writer_refuses_to_commit_fewer_records_than_announced(path):
    writer = WRITERS[path](path, fields=FIELDS, num_records=4)
    writer.write(make_records(3), ["a", "b", "c"])
    with pytest.raises(DataError, match=rf"D105.*{path}.*3 of 4 records were written"):
        writer.close(Manifest(4, FIELDS))
    writer.abort()
    writer.abort()
    assert os.listdir() == []
