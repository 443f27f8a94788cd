"""Stores over what an input reads."""

import numpy as np
import pytest
import torch

from framework.contracts.records import Chunk, Field, Manifest
from framework.data.hdf5 import hdf5_source
from framework.data.lmdb import lmdb_source
from framework.errors import ConfigError
from framework.store.open_store import ChunkStore, ItemStore
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import micros, write_case

FIELDS = {
    "image": Field("uint8", (1, None, None), "image"),
    "wave": Field("float32", (None, 2)),
    "y": Field("int64", ()),
}
MANIFEST = Manifest(3, FIELDS)


class Items:
    """An input of a record per item."""

    manifest = MANIFEST

    def read(self, start, stop):
        numbers = range(start, stop)
        waves = [np.full((n, 2), n, np.float32) for n in numbers]
        images = [bytes([n]) for n in numbers]
        return Chunk(
            {"image": images, "wave": waves, "y": np.arange(start, stop)}, [str(n) for n in numbers]
        )

    def name(self, index):
        return f"item {index}"


def stores():
    whole = Items().read(2, 6)
    yield ChunkStore(whole, MANIFEST, lambda index: f"item {index + 2}")
    yield ItemStore(Items(), 2, ["2", "3", "4", "5"], MANIFEST)


def test_both_give_the_records_asked_for_in_their_order():
    for store in stores():
        for wanted in ([0, 1, 2, 3], [3, 0, 0]):
            records = store.read(torch.tensor(wanted))
            numbers = [index + 2 for index in wanted]
            assert [data[0] for data in records["image"]] == numbers
            assert records["wave"].lengths.tolist() == numbers
            assert records["wave"].values.shape == (sum(numbers), 2)
            assert records["y"].tolist() == numbers
        assert store.name(1) == "item 3"
        assert store.key(1) == "3"
        assert store.manifest.num_records == 4


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
