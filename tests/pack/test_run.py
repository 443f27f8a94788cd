import multiprocessing
import os
import re
import resource
import signal
from functools import partial

import numpy as np
import pytest
import torch

from framework.contracts import Manifest
from framework.data.hdf5 import HDF5Store, HDF5Writer
from framework.data.lmdb import LMDBStore, LMDBWriter
from framework.errors import DataError, ResourceError
from framework.pack.run import CHUNK, check_same_length, image_fields, pack
from tests.conftest import FIELDS, make_records, write_store
from tests.contract.cases import plain

COUNT = 2 * CHUNK + 5
FORMATS = {"x.h5": (HDF5Writer, HDF5Store), "x.lmdb": (LMDBWriter, LMDBStore)}
HERE = os.getpid()


class Input:
    """Items from memory; item 70 is bad or deadly where that is asked for."""

    def __init__(self, count=COUNT, trouble=None):
        self.records, self.trouble = make_records(count), trouble
        self.manifest = Manifest(count, FIELDS, ["a", "b", "c"], source="memory")

    def read(self, start, stop):
        if start <= 70 < stop and self.trouble == "bad":
            raise DataError(106, "item 70", "not a readable image", "mend it")
        if start <= 70 < stop and self.trouble == "deadly" and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return {name: values[start:stop] for name, values in self.records.items()}


def _pack(path, source=None, num_workers=0, progress=lambda *_: None):
    return pack(source or Input(), partial(FORMATS[path][0], path), path, num_workers, progress)


def _content(path):
    store = FORMATS[path][1](path)
    found = plain(store.read(torch.arange(store.manifest.num_records)))
    store.close()
    return found


def _pack_on_a_small_disk(path, size_bytes, queue):
    """In a child process, whose files cannot grow beyond ``size_bytes``: says how packing ended."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))
    try:
        _pack(path)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is told to the parent
        queue.put((type(error).__name__, str(error)))


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_records_lie_in_the_order_of_the_items(path, num_workers):
    _pack(path, num_workers=num_workers)
    assert _content(path) == plain(make_records(COUNT))


@pytest.mark.parametrize("path", FORMATS)
def test_the_number_of_processes_does_not_change_the_file(path):
    files = []
    for num_workers in (0, 2):
        _pack(path, num_workers=num_workers)
        with open(path, "rb") as file:
            files.append(file.read())
    assert files[0] == files[1]


def test_the_records_of_each_class_are_counted():
    manifest = _pack("x.h5")
    assert manifest.class_counts == np.bincount(make_records(COUNT)["label"]).tolist()
    assert HDF5Store("x.h5").manifest == manifest


def test_progress_counts_records_and_bytes():
    told = []
    _pack("x.h5", progress=lambda *numbers: told.append(numbers))
    record_bytes = 3 * 4 * 4 + 8
    assert told == [(count, count * record_bytes) for count in (CHUNK, 2 * CHUNK, COUNT)]


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_item_is_named_and_leaves_the_old_store(path, num_workers):
    write_store(path, make_records(3))
    with pytest.raises(DataError, match=r"D106.*item 70"):
        _pack(path, Input(trouble="bad"), num_workers)
    assert len(_content(path)["label"]) == 3
    assert os.listdir() == [path]


@pytest.mark.parametrize("path", FORMATS)
def test_a_bad_item_leaves_nothing_where_nothing_was(path):
    with pytest.raises(DataError, match="item 70"):
        _pack(path, Input(trouble="bad"))
    assert os.listdir() == []


def test_a_killed_process_is_a_resource_error():
    with pytest.raises(ResourceError, match=r"R102.*workers = 2.*killed"):
        _pack("x.h5", Input(trouble="deadly"), 2)
    assert os.listdir() == []


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize("size_bytes", [0, 3000, 8000])
def test_a_full_disk_is_a_resource_error_and_leaves_the_old_store(path, size_bytes):
    write_store(path, make_records(3))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_pack_on_a_small_disk, args=(path, size_bytes, queue))
    child.start()
    child.join()
    assert child.exitcode == 0
    kind, words = queue.get()
    assert kind == "ResourceError", words
    assert re.search(rf"R101.*{path}.*cannot write", words)
    assert len(_content(path)["label"]) == 3
    assert os.listdir() == [path]


def test_an_interrupt_leaves_the_old_store():
    def interrupt(*_):
        raise KeyboardInterrupt

    write_store("x.h5", make_records(3))
    with pytest.raises(KeyboardInterrupt):
        _pack("x.h5", progress=interrupt)
    assert len(_content("x.h5")["label"]) == 3
    assert os.listdir() == ["x.h5"]


def test_an_unwritable_place_is_a_resource_error():
    with open("file", "w"):
        pass
    with pytest.raises(ResourceError, match=r"R101.*file/x\.h5"):
        pack(Input(), partial(HDF5Writer, "file/x.h5"), "file/x.h5", 0, lambda *_: None)


def test_fields_of_labeled_images():
    assert image_fields(3, 4, 5, raw=True)["image"].shape == (3, 4, 5)
    assert image_fields(3, None, None, raw=False)["image"].encoding == "image"


@pytest.mark.parametrize("lengths", [{"x": 1, "y": 2}, {"x": 0}, {"x": 0, "y": 0}, {}])
def test_arrays_without_one_common_length_are_named(lengths):
    with pytest.raises(DataError, match=r"D111.*x\.npz"):
        check_same_length("x.npz", lengths)
