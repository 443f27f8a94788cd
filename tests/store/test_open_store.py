import os

import pytest

from framework.errors import DataError
from framework.store.hdf5_store import HDF5Store
from framework.store.lmdb_store import LMDBStore
from framework.store.open_store import open_records, open_store
from framework.store.parquet_store import ParquetStore
from framework.store.tar_store import TarStore
from tests.contract.cases import write_case


@pytest.mark.parametrize(("kind", "expected"), [("hdf5", HDF5Store), ("lmdb", LMDBStore)])
@pytest.mark.parametrize("name", ["x.h5", "x.lmdb", "x"])
def test_a_store_is_known_by_its_content(name, kind, expected):
    os.rename(write_case(kind, 3)[0], name)
    store = open_store(name)
    assert isinstance(store, expected)
    assert store.manifest.num_records == 3
    store.close()


@pytest.mark.parametrize(
    ("name", "kind"), [("x.h5", "HDF5"), ("x.hdf5", "HDF5"), ("x.lmdb", "LMDB")]
)
def test_an_empty_file_is_named_at_its_first_use(name, kind):
    open(name, "wb").close()
    with pytest.raises(DataError, match=rf"D102.*{name}: not an {kind} file"):
        _ = open_store(name).manifest


@pytest.mark.parametrize(
    ("kind", "store"),
    [("tar", TarStore), ("parquet", ParquetStore), ("hdf5", HDF5Store), ("lmdb", LMDBStore)],
)
def test_records_can_be_read_in_place_and_nothing_is_written(kind, store):
    path, _ = write_case(kind, 3)
    before = sorted(os.listdir(path)) if os.path.isdir(path) else []
    opened = open_records(path)
    assert isinstance(opened, store)
    assert opened.manifest.num_records == 3
    opened.close()
    assert before == (sorted(os.listdir(path)) if os.path.isdir(path) else [])
