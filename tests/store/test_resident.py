import pytest
import torch

from framework.data.hdf5 import hdf5_source
from framework.data.lmdb import lmdb_source
from framework.errors import ConfigError
from framework.store.hdf5_store import HDF5Store
from framework.store.resident import ResidentStore
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import micros, plain, rows, write_case

CPU = torch.device("cpu")
MAKE = {"h5": hdf5_source, "lmdb": lmdb_source}


@pytest.mark.parametrize("suffix", MAKE)
@pytest.mark.parametrize("verify", ["off", "always"])
def test_batches_are_those_of_the_file(suffix, verify):
    path = write_store(f"x.{suffix}", make_records(5000))
    options = {"batch_size": 256, "verify": verify}
    alone, resident = (
        MAKE[suffix](path, stage, context=make_context(**options)) for stage in ("none", "device")
    )
    assert [micros(resident, epoch) for epoch in range(2)] == [
        micros(alone, epoch) for epoch in range(2)
    ]
    alone.close()
    resident.close()


def test_tensors_belong_to_the_caller_and_come_back_after_a_close():
    store = ResidentStore(HDF5Store(write_store("x.h5", make_records(9))), CPU)
    for values in store.read(torch.tensor([3])).values():
        values.zero_()
    store.close()
    assert plain(store.read(torch.tensor([3]))) == rows(make_records(9), [3])
    assert store.name(3) == "x.h5: record 3 (record-3)"


def test_encoded_images_are_refused():
    path, _ = write_case("hdf5_images", 5)
    with pytest.raises(ConfigError, match=r"C171.*\['image'\] is encoded.*pack\.encode=raw"):
        hdf5_source(path, "device", context=make_context())


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_workers_are_refused(kind):
    path = write_store("x.h5", make_records(9))
    with pytest.raises(ConfigError, match=r"C171.*workers\.num = 2.*leave workers\.num out"):
        hdf5_source(path, "device", context=make_context(num_workers=2, worker_kind=kind))
