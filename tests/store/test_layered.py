import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from framework.contracts.records import Field
from framework.data.hdf5 import hdf5_source
from framework.errors import DataError
from framework.order.select import chosen
from framework.store.channel_statistics import statistics_of
from framework.store.checksum import content_crcs, digest
from framework.store.columns import StoreFacts, column_of, lengths_of
from framework.store.hdf5_store import HDF5Writer
from framework.store.layered import Edit, layer_manifest
from framework.store.open_store import open_store
from tests.conftest import edited_manifest, make_context, make_records, write_store
from tests.contract.cases import edit, micros, open_case, plain, plain_values, write_case
from tests.store.fuzz import flips, judge, mutations, truncations

LAYERED = ("hdf5_layered", "lmdb_layered", "shards_layered", "hdf5_ragged_layered")


@pytest.fixture(params=LAYERED)
def case(request):
    """Yield a store with a layer of every edit, and its records."""
    path, records = write_case(request.param, 7)
    store = open_store(path)
    yield store, records
    store.close()


def test_columns_and_lengths_are_those_of_the_records(case):
    store, records = case
    for name, field in store.manifest.fields.items():
        assert plain_values(column_of(store, name)) == plain(records)[name]
        if field.encoding == "ragged":
            assert lengths_of(store, name).tolist() == [len(value) for value in records[name]]


def test_the_manifest_tells_what_packing_the_records_would(case):
    store, records = case
    manifest = store.manifest
    read = store.read(torch.arange(7))
    assert manifest.digest == digest(content_crcs(read, manifest.fields))
    assert manifest.statistics == statistics_of(store)
    assert list(manifest.class_counts) == np.bincount(records["label"], minlength=3).tolist()


def test_a_selection_sees_the_new_values(case):
    store, records = case
    selected = chosen(7, StoreFacts(store), "label == 0", None, True)
    assert selected.tolist() == np.flatnonzero(records["label"] == 0).tolist()


def test_intact_records_are_not_damaged(case):
    indices = torch.tensor([6, 0, 0, 3])
    assert case[0].damaged(indices, case[0].read(indices)) == []


@pytest.mark.parametrize("name", ["image", "label"])
def test_a_changed_value_is_noticed_wherever_it_lies(name):
    store = open_store(write_case("hdf5_layered", 7)[0])
    for index in range(7):
        records = store.read(torch.arange(7))
        records[name][index] += 1
        assert store.damaged(torch.arange(7), records) == [index]
    store.close()


def test_records_that_stay_keep_their_bytes_and_keys():
    path = write_store("d.h5", make_records(6))
    edit(path, "drop", "label == 1")
    old, new = open_store("d.h5@1"), open_store(path)
    assert [new.key(index) for index in range(4)] == [old.key(index) for index in (0, 2, 3, 5)]
    assert plain(new.read(torch.arange(4))) == plain(old.read(torch.tensor([0, 2, 3, 5])))


def test_every_version_has_a_digest_of_its_own():
    path, _ = write_case("hdf5_layered", 7)
    history = open_store(path).history
    assert len({version.manifest.digest for version in history}) == 5
    assert [version.kind for version in history] == ["pack", "drop", "append", "relabel", "add"]


def test_old_bytes_stay_as_they_are():
    path = write_store("d.h5", make_records(6))
    before = Path(path).read_bytes()
    edit(path, "drop", "label == 1")
    edit(path, "append", "d.h5@1")
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("stage", ["none", "cold", "ram", "device"])
def test_a_version_is_staged_with_its_layers(stage):
    path, records = write_case("hdf5_layered", 7)
    source = hdf5_source(path, stage, context=make_context(batch_size=7, training=False))
    batch = next(source.batches(0)).batch
    assert plain_values(batch["score"]) == records["score"].tolist()
    source.close()


def test_an_edit_does_not_change_what_an_open_source_reads():
    path = write_store("d.h5", make_records(10))
    ways = [(0, "thread"), (2, "process")]
    sources = [
        hdf5_source(path, context=make_context(num_workers=num, worker_kind=kind))
        for num, kind in ways
    ]
    before = [micros(source) for source in sources]
    edit(path, "drop", "label == 1")
    assert [micros(source) for source in sources] == before
    for source in sources:
        source.close()


# ---- layers that do not fit


def test_a_layer_of_another_store_is_refused():
    for path, count in (("a.h5", 6), ("b.h5", 9)):
        edit(write_store(path, make_records(count)), "drop", "label == 1")
    shutil.copy("b.h5.layer2", "a.h5.layer2")
    with pytest.raises(DataError, match=r"D251.*a.h5.layer2: was made for another store"):
        _ = open_store("a.h5").manifest


def test_a_plain_store_is_no_layer():
    write_store("d.h5", make_records(6))
    os.rename(write_store("x.h5", make_records(6)), "d.h5.layer2")
    with pytest.raises(DataError, match=r"D251.*is not a layer of a store"):
        _ = open_store("d.h5").manifest


@pytest.mark.parametrize(
    "changes", [{"number": 3}, {"kind": "x"}, {"kind": "add"}, {"manifest": "{}"}, {"number": None}]
)
def test_a_hostile_description_is_refused(changes):
    edit(write_store("d.h5", make_records(6)), "drop", "label == 1")
    with h5py.File("d.h5.layer2", "r+") as file:
        text = file.attrs["manifest"].decode()
        options = open_layer(text) | changes
        file.attrs["manifest"] = np.bytes_(edited_manifest(text, options={"layer": options}))
    with pytest.raises(DataError, match=r"D251|D104"):
        _ = open_store("d.h5").manifest


def open_layer(text: str) -> dict:
    return json.loads(text)["options"]["layer"]


@pytest.mark.parametrize("dropped", [[3, 1], [1, 1], [-1, 2], [2, 6]])
def test_numbers_that_are_no_ascending_records_are_refused(dropped):
    edit(write_store("d.h5", make_records(6)), "drop", "label == 1")
    version = open_store("d.h5").history[1].manifest
    fields = {"dropped": Field("int64", (2,))}
    writer = HDF5Writer("d.h5.layer2", fields=fields, num_records=1)
    writer.write({"dropped": np.array([dropped])}, [""])
    parent = open_store("d.h5@1").manifest.digest
    writer.close(layer_manifest(fields, 1, Edit(2, "drop", "drop=x", "", parent, version)))
    with pytest.raises(DataError, match=r"D251.*d.h5.layer2: is damaged, or does not fit"):
        open_store("d.h5").read(torch.tensor([0]))


@pytest.mark.parametrize(
    "kind", ["hdf5_layered", pytest.param("lmdb_layered", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("layer", [2, 3, 4, 5])
def test_no_damage_to_a_layer_crashes_or_passes(kind, layer):
    path, records = write_case(kind, 7)
    data = Path(f"{path}.layer{layer}").read_bytes()
    damaged = [*flips(data, 60), *mutations(data, 20), *truncations(data, 10)]

    def opened(file: str):
        shutil.copy(file, f"{path}.layer{layer}")
        return open_case(kind, path)

    verdicts = judge(opened, "layer", iter(damaged), plain(records), 7)
    assert verdicts.keys() <= {"right", "found", "refused"}
    assert verdicts["refused"]
