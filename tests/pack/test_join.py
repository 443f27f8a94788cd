import json
import tracemalloc
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest

from framework.errors import DataError
from framework.input.arrays import ArraysInput
from framework.pack import jobs
from framework.pack.join import list_bad, size_of
from framework.pack.pack_store import pack
from framework.pack.packing import BadItem
from framework.store.open_store import open_store
from tests.input.inputs import packing


def test_bad_items_are_listed_in_order_whatever_their_names():
    bad = [BadItem(7, "b\udcff\n", "D106", "broken"), BadItem(2, "ü", "D106", "empty")]
    listing = list_bad(Path("x.h5"), bad)
    assert [
        json.loads(line)["item"] for line in listing.read_text(encoding="ascii").splitlines()
    ] == [2, 7]
    assert not list_bad(Path("x.h5"), []).exists()


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_a_folders_manifest_names_its_files_with_their_checksums(path):
    packed = pack(packing(path, one_file=False))
    shards = open_store(path).manifest.shards
    assert (
        sum(shard.size_bytes for shard in shards) + (Path(path) / "manifest.json").stat().st_size
        == packed.num_bytes
    )
    assert size_of(Path(path)) == packed.num_bytes
    assert len({shard.sha256 for shard in shards}) == len(shards) > 1


def _stand(kind):
    """Put something at x.h5 that somebody may want back."""
    path = Path("x.h5")
    if kind == "folder":
        path.mkdir()
        (path / "photo.jpg").write_bytes(b"mine")
    elif kind == "link":
        Path("other.h5").write_bytes(b"mine")
        path.symlink_to("other.h5")
    elif kind in ("hdf5", "truncated hdf5"):
        with h5py.File(path, "w") as file:
            file["x"] = [1] * 1000
        if kind == "truncated hdf5":
            path.write_bytes(path.read_bytes()[:4000])
    elif kind == "lmdb with named databases":
        with (
            lmdb.open(str(path), subdir=False, max_dbs=1, lock=False) as environment,
            environment.begin(environment.open_db(b"images"), write=True) as transaction,
        ):
            transaction.put(b"photo", b"mine")
    else:
        path.write_bytes(b"mine")


STANDS = ["folder", "link", "hdf5", "truncated hdf5", "lmdb with named databases", "file"]


@pytest.mark.parametrize("kind", STANDS)
def test_what_is_no_store_of_ours_is_not_replaced(kind):
    _stand(kind)
    before = sorted((str(path), path.read_bytes()) for path in Path().rglob("*") if path.is_file())
    with pytest.raises(DataError, match=r"D115.*x\.h5"):
        pack(packing("x.h5"))
    assert (
        sorted((str(path), path.read_bytes()) for path in Path().rglob("*") if path.is_file())
        == before
    )


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_a_damaged_store_is_replaced_if_its_manifest_is_found(path):
    pack(packing(path))
    whole_file = Path(path).read_bytes()
    damaged = whole_file.replace(b'"source": "memory"', b'"source": "Memory"')
    Path(path).write_bytes(damaged)
    pack(packing(path))
    assert Path(path).read_bytes() == whole_file != damaged


def peak_bytes(count):
    """Return the memory that packing an array of so many numbers takes at most."""
    np.save("x.npy", np.zeros(count, np.float32))
    tracemalloc.start()
    pack(packing(source=ArraysInput("x.npy", None)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_number_of_records(monkeypatch):
    monkeypatch.setattr(jobs, "ARRAY_JOB_BYTES", 1 << 20)
    assert peak_bytes(2 << 20) < peak_bytes(1 << 19) + (1 << 20)
