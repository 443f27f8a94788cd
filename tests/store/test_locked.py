import ctypes
import os
import re

import numpy as np
import pytest
import torch

from framework.contracts.records import Field
from framework.data.hdf5 import hdf5_source
from framework.data.lmdb import lmdb_source
from framework.errors import DataError
from framework.store.open_store import open_store
from framework.store.staging import lockable
from framework.system.native import find
from framework.transform.random_resized_crop import RandomResizedCrop
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import micros, write_case
from tests.simulated_cuda.patch import simulated
from tests.simulated_cuda.tensors import CUDA

FIELDS = {"image": Field("uint8", (3, 128, 128)), "label": Field("int64", ())}
MAKE = {"h5": hdf5_source, "lmdb": lmdb_source}
CROP = RandomResizedCrop([6, 5], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True)
compiled = pytest.mark.skipif(find("paceline_gather") is None, reason="no C library")


def photographs(count):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 3, 128, 128), np.uint8)
    return {"image": images, "label": np.arange(count)}


@compiled
@pytest.mark.parametrize("suffix", MAKE)
def test_stores_of_large_raw_fields_can_be_locked(suffix):
    assert lockable(open_store(write_store(f"x.{suffix}", photographs(3), FIELDS)))


@compiled
@pytest.mark.parametrize("kind", ["hdf5_images", "lmdb_images", "hdf5_ragged"])
def test_other_stores_cannot(kind):
    assert not lockable(open_store(write_case(kind, 4)[0]))


@pytest.fixture
def simulation():
    with simulated(0) as device:
        yield device


def source_in_memory(records=None, fields=None, **options):
    path = write_store("x.h5", records or make_records(9), fields)
    context = {"device": CUDA, "verify": "off", **options}
    return hdf5_source(path, "ram", context=make_context(**context))


@compiled
def test_a_store_is_locked_until_its_source_is_closed(simulation):
    source = source_in_memory()
    assert list(simulation.driver.locked.values()) == [os.path.getsize("x.h5")]
    read = source.read._locked
    source.close()
    assert not simulation.driver.locked
    with pytest.raises(DataError, match="D101"):
        read(torch.tensor([0]))


@compiled
def test_pieces_outlive_the_locked_files(simulation):
    source = source_in_memory()
    pieces = source.read._locked(torch.tensor([3, 0]))["image"]
    source.close()
    kept = (ctypes.c_uint8 * 48).from_address(int(pieces.addresses[0]))
    assert list(kept) == make_records(9)["image"][3].ravel().tolist()


@compiled
def test_memory_that_cannot_be_locked_is_gathered_with_a_note(monkeypatch):
    with simulated(0) as device:
        device.driver.refuses = 400
        source = source_in_memory()
        why = "x.h5: CUDA_ERROR_INVALID_HANDLE"
        assert len(source.notes) == 1
        assert re.fullmatch(
            rf"data\.stage=ram: the GPU cannot copy records by itself \(.*{why}\); "
            "the cores gather them",
            source.notes[0],
        )
        assert len(micros(source)) == 3
        source.close()


@compiled
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"verify": "always"},
        {"device": torch.device("cpu")},
        {"transform": CROP},
    ],
)
def test_what_no_gpu_copies_is_not_locked(simulation, options):
    source = source_in_memory(**options)
    assert not simulation.driver.locked
    assert source.notes == ()
    source.close()
