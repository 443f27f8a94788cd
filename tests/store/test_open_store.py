import hashlib
import os
import pickle
import shutil
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.contracts.records import Chunk, Field, Manifest, Shard
from framework.data import hdf5, lmdb
from framework.errors import ConfigError, DataError
from framework.store import open_store
from framework.store.file_store import content_crcs, digest, to_json
from framework.store.hdf5_store import HDF5Store
from framework.store.lmdb_store import LMDBStore
from framework.store.open_store import ChunkStore, ItemStore, MixedStore, ShardedStore, open_file
from framework.store.parquet_store import ParquetStore
from framework.store.tar_store import TarStore
from tests.conftest import FIELDS, make_context, make_records, write_store
from tests.contract.cases import RAGGED_FIELDS, micros, plain, ragged_records, rows, write_case


@pytest.mark.parametrize(("kind", "expected"), [("hdf5", HDF5Store), ("lmdb", LMDBStore)])
@pytest.mark.parametrize("name", ["x.h5", "x.lmdb", "x"])
def test_a_store_is_known_by_its_content(name, kind, expected):
    os.rename(write_case(kind, 3)[0], name)
    store = open_store.open_store(name)
    assert isinstance(store, expected)
    assert store.manifest.num_records == 3
    store.close()


@pytest.mark.parametrize(
    ("kind", "store"),
    [("tar", TarStore), ("parquet", ParquetStore), ("hdf5", HDF5Store), ("lmdb", LMDBStore)],
)
def test_records_can_be_read_in_place_and_nothing_is_written(kind, store):
    path, _ = write_case(kind, 3)
    before = sorted(os.listdir(path)) if os.path.isdir(path) else []
    opened = open_store.open_records(path)
    assert isinstance(opened, store)
    assert opened.manifest.num_records == 3
    opened.close()
    assert before == (sorted(os.listdir(path)) if os.path.isdir(path) else [])


def write_directory(path, cuts, suffix="h5", count=20, records=None, fields=FIELDS):
    """Write a store of ``count`` records in files cut at ``cuts``, and return its path."""
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    records = records or make_records(count)
    edges, shards = [0, *cuts, count], []
    for number, (start, stop) in enumerate(pairwise(edges)):
        part = {name: values[start:stop] for name, values in records.items()}
        file = write_store(f"{path}/{number:06d}.{suffix}", part, fields)
        data = Path(file).read_bytes()
        own = open_file(file)
        sums = hashlib.sha256(data).hexdigest(), own.manifest.digest
        shards.append(Shard(os.path.basename(file), stop - start, len(data), *sums))
        own.close()
    whole = digest(content_crcs(records, fields))
    manifest = Manifest(count, fields, ["a", "b", "c"], digest=whole, shards=shards)
    Path(path, "manifest.json").write_text(to_json(manifest))
    return path


def _change(path, **changes):
    """Replace these values in the manifest of the store at ``path``."""
    old = ShardedStore(path, open_file).manifest
    Path(path, "manifest.json").write_text(to_json(replace(old, **changes)))


@settings(max_examples=10)
@given(
    st.lists(st.integers(0, 20), max_size=5),
    st.sampled_from(["h5", "lmdb"]),
    st.lists(st.integers(0, 19), max_size=30),
)
def test_any_cut_reads_as_one_file_does(cuts, suffix, indices):
    store = open_store.open_store(write_directory("x", sorted(cuts), suffix))
    records = store.read(torch.tensor(indices, dtype=torch.int64))
    assert plain(records) == rows(make_records(20), indices)
    assert store.damaged(torch.tensor(indices, dtype=torch.int64), records) == []
    store.close()


@pytest.mark.parametrize("suffix", ["h5", "lmdb"])
def test_records_keep_their_keys_and_are_named_by_their_file(suffix):
    store = open_store.open_store(write_directory("x", [7, 7, 12], suffix))
    assert [store.key(index) for index in (0, 6, 7, 12, 19)] == [
        *("record-0", "record-6", "record-0", "record-0", "record-7"),
    ]
    assert store.name(8) == f"x/000002.{suffix}: record 1 (record-1)"
    store.close()


def test_all_problems_with_the_files_are_reported_at_once():
    write_directory("x", [5, 10, 15])
    os.remove("x/000000.h5")
    os.truncate("x/000001.h5", 100)
    Path("x/other.h5").write_bytes(b"")
    with pytest.raises(
        DataError,
        match=r"D118.*x: 000000\.h5 is missing, "
        r"000001\.h5 has 100 bytes, not \d+, other\.h5 does not belong",
    ):
        _ = open_store.open_store("x").manifest


@pytest.mark.parametrize("name", ["../y.h5", "/etc/passwd", "a/b.h5", "..", ".", ""])
def test_a_file_outside_the_directory_is_refused(name):
    write_directory("x", [])
    shutil.copy("x/000000.h5", "y.h5")
    shard = asdict(ShardedStore("x", open_file).manifest.shards[0])
    _change("x", shards=[Shard(**{**shard, "name": name})])
    with pytest.raises(DataError, match=r"D104.*x.*outside the directory"):
        open_store.open_store("x").read(torch.tensor([0]))


@pytest.mark.parametrize("file", ["manifest.json", "000001.h5"])
def test_a_file_replaced_between_epochs_is_reported(file):
    source = hdf5.hdf5_source(write_directory("x", [7]), context=make_context())
    micros(source)
    data = Path("x", file).read_bytes()
    Path("y").write_bytes(data)
    os.replace("y", f"x/{file}")
    with pytest.raises(DataError, match=rf"D117.*x/{file}"):
        micros(source, 1)
    source.close()


def split(records, cuts, fields, kinds=("h5", "lmdb", "h5")):
    """Return stores of consecutive parts of the records, by name."""
    stores = {}
    ends = [0, *cuts, len(next(iter(records.values())))]
    for number, (start, stop) in enumerate(pairwise(ends)):
        part = {name: values[start:stop] for name, values in records.items()}
        path = write_store(f"{number}.{kinds[number]}", part, fields)
        stores[f"part{number}"] = open_store.open_store(path)
    return stores


@pytest.mark.parametrize("indices", [[0, 1, 2], [8, 0, 4, 4], [3], []])
def test_records_of_all_stores_are_numbered_through(indices):
    records = ragged_records(9)
    store = MixedStore(split(records, [3, 4], RAGGED_FIELDS))
    for copy in (store, pickle.loads(pickle.dumps(store))):
        read = copy.read(torch.tensor(indices, dtype=torch.int64))
        assert plain(read) == rows(records, indices)
        assert copy.damaged(torch.tensor(indices, dtype=torch.int64), read) == []
        copy.close()
    assert store.manifest.num_records == 9
    assert store.lengths("blob").tolist() == list(range(9))
    assert store.column("label").tolist() == records["label"].tolist()
    assert (store.key(4), store.name(3)) == ("record-0", "1.lmdb: record 0 (record-0)")
    store.check()
    store.close()


def test_no_store_or_other_fields_or_classes_are_refused():
    with pytest.raises(ConfigError, match=r"C203.*names no store"):
        MixedStore({})
    write_store("a.h5", make_records(2))
    fields = {**FIELDS, "label": Field("int32", ())}
    records = make_records(2)
    write_store("b.h5", {**records, "label": records["label"].astype("int32")}, fields)
    with pytest.raises(ConfigError, match=r"C203.*\{one, two\}: they differ in the fields label"):
        MixedStore({"one": HDF5Store("a.h5"), "two": HDF5Store("b.h5")})


ITEM_FIELDS = {
    "image": Field("uint8", (1, None, None), "image"),
    "wave": Field("float32", (None, 2)),
    "y": Field("int64", ()),
}
MANIFEST = Manifest(3, ITEM_FIELDS)


class Items:
    """An input of a record per item."""

    manifest = MANIFEST

    def read(self, start, stop):
        numbers = range(start, stop)
        waves = [np.full((n, 2), n, np.float32) for n in numbers]
        records = {"image": [bytes([n]) for n in numbers], "wave": waves, "y": np.array(numbers)}
        return Chunk(records, [str(n) for n in numbers])

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


MAKE = {"h5": hdf5.hdf5_source, "lmdb": lmdb.lmdb_source}


@pytest.mark.parametrize(("suffix", "verify"), [("h5", "off"), ("lmdb", "always")])
def test_batches_are_those_of_the_file(suffix, verify):
    path = write_store(f"x.{suffix}", make_records(500))
    options = {"batch_size": 64, "verify": verify}
    alone, resident = (
        MAKE[suffix](path, stage, context=make_context(**options)) for stage in ("none", "device")
    )
    assert [micros(resident, n) for n in range(2)] == [micros(alone, n) for n in range(2)]
    alone.close()
    resident.close()


def test_encoded_images_are_refused():
    path, _ = write_case("hdf5_images", 5)
    with pytest.raises(ConfigError, match=r"C171.*\['image'\] is encoded.*pack\.encode=raw"):
        hdf5.hdf5_source(path, "device", context=make_context())


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_workers_are_refused(kind):
    path = write_store("x.h5", make_records(9))
    with pytest.raises(ConfigError, match=r"C171.*workers\.num = 2.*leave workers\.num out"):
        hdf5.hdf5_source(path, "device", context=make_context(num_workers=2, worker_kind=kind))
