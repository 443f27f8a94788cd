import pytest

from framework.data.hdf5 import hdf5_source
from framework.data.lmdb import lmdb_source
from framework.errors import ConfigError
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import micros, write_case

MAKE = {"h5": hdf5_source, "lmdb": lmdb_source}


@pytest.mark.parametrize(("suffix", "verify"), [("h5", "off"), ("lmdb", "always")])
def test_batches_are_those_of_the_file(suffix, verify):
    path = write_store(f"x.{suffix}", make_records(500))
    options = {"batch_size": 64, "verify": verify}
    alone, resident = (
        MAKE[suffix](path, stage, context=make_context(**options)) for stage in ("none", "device")
    )
    assert [micros(resident, epoch) for epoch in range(2)] == [
        micros(alone, epoch) for epoch in range(2)
    ]
    alone.close()
    resident.close()


def test_encoded_images_are_refused():
    path, _ = write_case("hdf5_images", 5)
    with pytest.raises(ConfigError, match=r"C171.*\['image'\] is encoded.*pack\.encode=raw"):
        hdf5_source(path, "device", context=make_context())


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_workers_are_refused(kind):
    path = write_store("x.h5", make_records(9))
    with pytest.raises(ConfigError, match=r"C171.*workers\.num = 2.*leave workers\.num out"):
        hdf5_source(path, "device", context=make_context(num_workers=2, worker_kind=kind))
