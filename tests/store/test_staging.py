import ctypes
import multiprocessing
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import Field
from framework.data import hdf5, lmdb
from framework.errors import DataError, ResourceError
from framework.store import staging as stage
from framework.store.open_store import open_store
from framework.store.staging import Staged, lockable, remove_leftovers
from framework.system.native import find
from framework.transform.random_resized_crop import RandomResizedCrop
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import micros, plain, rows, write_case
from tests.forks import forked
from tests.simulated_cuda import patch, tensors
from tests.store.test_open_store import write_directory


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """Keep the copies of this test apart from those of other runs."""
    place = tmp_path / "memory"
    place.mkdir()
    monkeypatch.setattr(stage, "MEMORY", place)
    return place


def _stage(path, ends, queue):
    staged = Staged(path)
    queue.put(staged.path)
    ends.wait()
    staged.close()


def _user(path):
    """Return a process that stages ``path`` until an event is set, the event, and the copy."""
    context = multiprocessing.get_context("fork")
    ends, queue = context.Event(), context.SimpleQueue()
    process = forked(_stage, path, ends, queue)
    return process, ends, queue.get()


@pytest.mark.parametrize(
    "make", [lambda: write_store("x.h5", make_records(20)), lambda: write_directory("x", [7])]
)
def test_a_copy_reads_like_the_store_and_is_removed(memory, make):
    staged = Staged(make())
    store = open_store(staged.path)
    assert staged.path.startswith(str(memory))
    assert plain(store.read(torch.tensor([19, 3]))) == rows(make_records(20), [19, 3])
    store.close()
    staged.close()
    assert list(memory.iterdir()) == []


def test_two_processes_share_a_copy_and_the_last_removes_it(memory):
    path = os.path.abspath(write_store("x.h5", make_records(20)))
    (first, first_ends, where), (second, second_ends, same) = _user(path), _user(path)
    assert where == same
    inode = os.stat(where).st_ino
    first_ends.set()
    first.join()
    assert os.stat(where).st_ino == inode
    second_ends.set()
    second.join()
    assert list(memory.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_run(memory):
    process, _, where = _user(os.path.abspath(write_store("x.h5", make_records(20))))
    process.kill()
    process.join()
    assert os.path.exists(where)
    remove_leftovers()
    assert list(memory.iterdir()) == []


def test_too_little_room_is_reported_before_anything_is_copied(memory, monkeypatch):
    monkeypatch.setattr(stage, "available_memory_bytes", lambda: 1000)
    with pytest.raises(
        ResourceError,
        match=r"R107.*x\.h5: \d+ bytes do not fit into memory, of which 900 may be taken",
    ):
        Staged(write_store("x.h5", make_records(20)))
    assert list(memory.iterdir()) == []


def _home(memory, path):
    staged = Staged(path)
    home = Path(staged.path).parent
    staged.close()
    return home


@pytest.mark.parametrize("ending", ["", ".part", ".lock"])
def test_a_link_planted_under_the_name_is_not_followed(memory, ending):
    path = write_store("x.h5", make_records(20))
    home = _home(memory, path)
    os.mkdir("planted")
    write_store("planted/x.h5", make_records(5))
    before = sorted(os.listdir("planted"))
    os.symlink(os.path.abspath("planted"), f"{home}{ending}")
    try:
        staged = Staged(path)
    except ResourceError as error:
        assert re.match(r"error\[R107\]", str(error))  # noqa: PT017  # one of two good ends
    else:
        assert open_store(staged.path).manifest.num_records == 20
        staged.close()
    assert sorted(os.listdir("planted")) == before


FIELDS = {"image": Field("uint8", (3, 128, 128)), "label": Field("int64", ())}
MAKE = {"h5": hdf5.hdf5_source, "lmdb": lmdb.lmdb_source}
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
    with patch.simulated(0) as device:
        yield device


def source_in_memory(records=None, fields=None, **options):
    path = write_store("x.h5", records or make_records(9), fields)
    context = {"device": tensors.CUDA, "verify": "off", **options}
    return hdf5.hdf5_source(path, "ram", context=make_context(**context))


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
    with patch.simulated(0) as device:
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
        *({"num_workers": 2}, {"verify": "always"}, {"device": torch.device("cpu")}),
        {"transform": CROP},
    ],
)
def test_what_no_gpu_copies_is_not_locked(simulation, options):
    source = source_in_memory(**options)
    assert not simulation.driver.locked
    assert source.notes == ()
    source.close()
