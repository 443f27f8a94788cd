import pickle
from itertools import pairwise

import pytest
import torch

from framework.contracts.records import Field
from framework.errors import ConfigError
from framework.store.hdf5_store import HDF5Store
from framework.store.open_store import MixedStore, open_store
from tests.conftest import FIELDS, make_records, write_store
from tests.contract.cases import RAGGED_FIELDS, plain, ragged_records, rows


def split(records, cuts, fields, kinds=("h5", "lmdb", "h5")):
    """Return stores of consecutive parts of the records, by name."""
    stores = {}
    ends = [0, *cuts, len(next(iter(records.values())))]
    for number, (start, stop) in enumerate(pairwise(ends)):
        part = {name: values[start:stop] for name, values in records.items()}
        path = write_store(f"{number}.{kinds[number]}", part, fields)
        stores[f"part{number}"] = open_store(path)
    return stores


@pytest.mark.parametrize("indices", [[0, 1, 2], [8, 0, 4, 4], [3], []])
def test_records_of_all_stores_are_numbered_through(indices):
    records = ragged_records(9)
    store = MixedStore(split(records, [3, 4], RAGGED_FIELDS))
    for copy in (store, pickle.loads(pickle.dumps(store))):
        read = copy.read(torch.tensor(indices, dtype=torch.int64))
        assert plain(read) == rows(records, indices)
        assert copy.damaged(torch.tensor(indices, dtype=torch.int64), read) == []
        copy.close()
    assert store.manifest.num_records == 9
    assert store.lengths("blob").tolist() == list(range(9))
    assert store.column("label").tolist() == records["label"].tolist()
    assert (store.key(4), store.name(3)) == ("record-0", "1.lmdb: record 0 (record-0)")
    store.check()
    store.close()


def test_no_store_or_other_fields_or_classes_are_refused():
    with pytest.raises(ConfigError, match=r"C203.*names no store"):
        MixedStore({})
    write_store("a.h5", make_records(2))
    fields = {**FIELDS, "label": Field("int32", ())}
    records = make_records(2)
    write_store("b.h5", {**records, "label": records["label"].astype("int32")}, fields)
    with pytest.raises(ConfigError, match=r"C203.*\{one, two\}: they differ in the fields label"):
        MixedStore({"one": HDF5Store("a.h5"), "two": HDF5Store("b.h5")})
