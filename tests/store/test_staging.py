import multiprocessing
import os
import re
from pathlib import Path

import pytest
import torch

from framework.errors import ResourceError
from framework.store import staging as stage
from framework.store.open_store import open_store
from framework.store.staging import Staged, remove_leftovers
from tests.conftest import make_records, write_store
from tests.contract.cases import plain, rows
from tests.forks import forked
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
