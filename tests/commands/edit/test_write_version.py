"""A version exists as a whole or not at all, whenever its edit is killed."""

import fcntl
import os
import random
import signal
from pathlib import Path

import pytest
import torch

from framework.errors import DataError, ResourceError
from framework.store.open_store import open_store
from framework.system import durable
from tests.conftest import make_records, write_store
from tests.contract.cases import edit, write_lines
from tests.forks import forked

POINTS = ("publish.written", "publish.synced", "publish.renamed", "publish.published")
EDITS = {
    "append": "more.h5",
    "drop": "label == 1",
    "relabel": "labels.csv",
    "add": "values.csv",
}


@pytest.fixture
def store():
    write_store("more.h5", make_records(5))
    write_lines("labels.csv", ["index,label", "0,b"])
    write_lines("values.csv", ["index,x", *(f"{n},{n}" for n in range(300))])
    return write_store("d.h5", make_records(300))


def _killed_at(point: str, kind: str) -> None:
    durable._reached = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None
    edit("d.h5", kind, EDITS[kind])


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", EDITS)
def test_a_killed_edit_leaves_the_old_version_or_the_new_one(store, kind, point):
    before = open_store(store).manifest
    killed = forked(_killed_at, point, kind)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    is_made = point in POINTS[2:]
    assert (open_store(store).manifest == before) != is_made
    if not is_made:
        edit(store, kind, EDITS[kind])
    manifest = open_store(store).manifest
    assert manifest.version == 2
    records = open_store(store).read(torch.arange(manifest.num_records))
    assert not open_store(store).damaged(torch.arange(manifest.num_records), records)
    left = {name for name in os.listdir() if name.startswith("d.h5")}
    assert left - {"d.h5.lock"} == {"d.h5", "d.h5.layer2"}


def test_an_edit_killed_at_any_moment_can_be_repeated(store):
    rng = random.Random(0)
    for _ in range(5):
        version = open_store(store).manifest.version
        killed = forked(edit, store, "append", "more.h5")
        killed.join(rng.uniform(0, 0.05))
        killed.kill()
        killed.join()
        assert open_store(store).manifest.version in (version, version + 1)
    count = open_store(store).manifest.num_records
    edit(store, "append", "more.h5")
    assert open_store(store).manifest.num_records == count + 5


def test_two_edits_at_once_are_refused(store):
    lock = os.open("d.h5.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ResourceError, match=r"R250.*is packing or editing the store"):
        edit(store, "append", "more.h5")
    os.close(lock)
    assert open_store(store).manifest.version == 1


def test_a_damaged_record_gets_no_new_version(store):
    data = bytearray(Path(store).read_bytes())
    data[data.index(make_records(300)["image"][7].tobytes())] ^= 1
    Path(store).write_bytes(data)
    with pytest.raises(DataError, match=r"D255.*record 7.*CRC32"):
        edit(store, "drop", "label == 1")
    assert sorted(Path().glob("d.h5*")) == [Path("d.h5")]


def test_a_full_disk_leaves_the_old_version(store):
    def fill(name: str) -> None:
        if name == "publish.written":
            raise OSError(28, "No space left on device")

    durable._reached = fill
    try:
        with pytest.raises(ResourceError, match=r"R101.*No space left"):
            edit(store, "append", "more.h5")
    finally:
        durable._reached = None
    assert open_store(store).manifest.version == 1
