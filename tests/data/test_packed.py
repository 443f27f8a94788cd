import os
import shutil
from pathlib import Path

import pytest

from framework.data.hdf5 import hdf5_source
from framework.data.lmdb import lmdb_source
from framework.data.packed import packed_source
from framework.errors import ConfigError, ResourceError
from framework.store.hdf5_store import HDF5Store
from framework.store.page_cache import cached_share
from framework.transform.flip import FlipTransform
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import micros
from tests.store.test_shards import write_directory

MAKE = {"h5": hdf5_source, "lmdb": lmdb_source}


@pytest.mark.parametrize("suffix", MAKE)
@pytest.mark.parametrize("stage", ["ram", "device"])
@pytest.mark.parametrize("shape", ["file", "directory"])
def test_wherever_records_are_kept_the_batches_are_the_same(suffix, stage, shape):
    path = (
        write_store(f"x.{suffix}", make_records(20))
        if shape == "file"
        else write_directory("x", [7], suffix)
    )
    alone, staged = (MAKE[suffix](path, where, context=make_context()) for where in ("none", stage))
    assert micros(staged) == micros(alone)
    alone.close()
    staged.close()


def test_a_place_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"C172.*data\.stage = disk"):
        packed_source("x.h5", HDF5Store, "disk", make_context())


@pytest.mark.parametrize("suffix", MAKE)
def test_a_cold_store_is_read_from_the_disk(suffix):
    home = Path(f"/var/tmp/paceline-test-{os.getpid()}")
    home.mkdir()
    try:
        path = write_store(str(home / f"x.{suffix}"), make_records(200))
        with open(path, "ab") as file:
            os.fsync(file.fileno())
        warm = MAKE[suffix](path, "none", context=make_context())
        expected = micros(warm)
        warm.close()
        try:
            cold = MAKE[suffix](path, "cold", context=make_context())
        except ResourceError as error:
            pytest.skip(f"this file system keeps its pages: {error}")
        assert micros(cold) == expected
        cold.close()
        assert cached_share([path]) > 0.9  # it was read
    finally:
        shutil.rmtree(home)


def test_what_lies_in_memory_cannot_be_made_cold():
    path = f"/dev/shm/paceline-test-{os.getpid()}.h5"
    try:
        write_store(path, make_records(20))
        with pytest.raises(ResourceError, match=r"R107.*data\.stage = cold.*100% of it stays"):
            hdf5_source(path, "cold", context=make_context())
    finally:
        os.unlink(path)


def test_a_transform_and_the_device_are_refused_together():
    path = write_store("x.h5", make_records(9))
    with pytest.raises(ConfigError, match=r"C171.*a transform works on the host"):
        hdf5_source(path, "device", context=make_context(transform=FlipTransform(0.5, 0.0)))


def test_memory_is_given_back_by_a_close_and_by_an_error():
    before = set(stage_names())
    source = hdf5_source(write_store("x.h5", make_records(20)), "ram", context=make_context())
    assert len(set(stage_names()) - before) == 2
    source.close()
    with pytest.raises(Exception, match="D109"):
        hdf5_source(write_store("y.h5", make_records(0)), "ram", context=make_context())
    assert set(stage_names()) <= before


def stage_names():
    """Return the names of this user's copies in memory."""
    from framework.store.staging import MEMORY

    return [path.name for path in MEMORY.glob("paceline-*")]
