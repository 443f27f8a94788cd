from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import Field, Manifest
from framework.errors import ConfigError, DataError
from framework.input.store import StoreInput
from framework.pack import pack_store, verify_store
from framework.pack.jobs import stamps as item_stamps
from framework.store import hdf5_store, lmdb_store
from framework.store.open_store import open_store
from tests.conftest import FIELDS, make_records
from tests.contract.cases import IMAGE_FIELDS, encoded_records, jpeg, plain
from tests.input.inputs import content, packing


def _write(path, records, fields=FIELDS, classes=("a", "b", "c"), **more):
    """Write a store in our format with the keys k0, k1, ... and return its path."""
    count = len(next(iter(records.values())))
    writer = (hdf5_store.HDF5Writer if path.endswith(".h5") else lmdb_store.LMDBWriter)(
        path, fields=fields, num_records=count
    )
    writer.write(records, [f"k{number}" for number in range(count)])
    writer.close(Manifest(count, fields, list(classes), source="a test", **more))
    return path


EVERY = [(make_records, FIELDS), (encoded_records, IMAGE_FIELDS)]


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
@pytest.mark.parametrize(("make", "fields"), EVERY)
def test_the_records_and_keys_of_a_store_come_as_they_are(path, make, fields):
    source = StoreInput(_write(path, make(7), fields, options={"encode": "keep"}))
    records, keys = source.read(2, 6)
    assert plain(records) == {name: values[2:6] for name, values in plain(make(7)).items()}
    assert keys == ["k2", "k3", "k4", "k5"]
    manifest = source.manifest
    assert (manifest.num_records, manifest.fields, manifest.classes) == (7, fields, ["a", "b", "c"])
    assert (manifest.source, manifest.options) == ("a test", {"encode": "keep"})


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 12), (3, 9), (5, 6), (4, 5), (0, 5), (11, 12), (5, 5)]
)
@pytest.mark.parametrize(("make", "fields"), EVERY)
def test_several_stores_are_one_after_the_other(start, stop, make, fields):
    paths = [_write("x.h5", make(5), fields), _write("y.lmdb", make(7), fields)]
    records, keys = StoreInput(paths).read(start, stop)
    parts = [plain(make(5)), plain(make(7))]
    assert plain(records) == {key: (parts[0][key] + parts[1][key])[start:stop] for key in fields}
    assert keys == [*(f"k{n}" for n in range(5)), *(f"k{n}" for n in range(7))][start:stop]


def test_classes_are_united_by_name_and_labels_renumbered():
    paths = [
        _write("x.h5", make_records(3), classes=["cat", "dog", "cow"]),
        _write("y.h5", make_records(3), classes=["ant", "cow", "cat"]),
    ]
    source = StoreInput(paths)
    assert source.manifest.classes == ["cat", "dog", "cow", "ant"]
    assert source.read(0, 6).records["label"].tolist() == [0, 1, 2, 3, 2, 0]
    assert source.read(0, 6).records["label"].dtype == np.int64


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"fields": {**FIELDS, "image": Field("uint8", (3, 4, 5))}},
            r"D169.*y\.h5.*\[3, 4, 5\].*x\.h5.*\[3, 4, 4\]",
        ),
        ({"fields": {"label": FIELDS["label"]}}, r"D169.*y\.h5"),
        ({"classes": ()}, r"D169.*y\.h5.*only one"),
    ],
)
def test_stores_that_cannot_be_one_are_named(other, words):
    records = make_records(3)
    fields = other.get("fields", FIELDS)
    wanted = {name: np.resize(records[name], (3, *field.shape)) for name, field in fields.items()}
    paths = [_write("x.h5", records), _write("y.h5", wanted, **{"fields": fields, **other})]
    with pytest.raises(DataError, match=words):
        _ = StoreInput(paths).manifest


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_damage_is_not_packed_again(path):
    _write(path, make_records(50))
    data = bytearray(Path(path).read_bytes())
    place = data.index(make_records(50)["image"][30].tobytes())
    data[place + 5] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(DataError, match=rf"D166.*{path}.*30.*k30.*CRC32.*verify"):
        StoreInput(path).read(0, 50)


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_a_store_that_is_replaced_meanwhile_is_not_mixed_with_the_new_one(path):
    source = StoreInput([_write("other.h5", make_records(2)), _write(path, make_records(3))])
    source.read(0, 5)
    spans = [(0, 2), (1, 3), (2, 5)]  # of the first store, both, the second
    before = [item_stamps(source, *span) for span in spans]
    _write(path, {**make_records(3), "label": np.arange(3)[::-1]})
    after = [item_stamps(source, *span) for span in spans]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, False]
    with pytest.raises(DataError, match=rf"D117.*{path}"):
        source.read(0, 5)


# ---- other records and values


def _labels_and_keys(source):
    chunk = source.read(0, source.manifest.num_records)
    return chunk.records["label"].tolist(), list(chunk.keys)


def _pets():
    """Write two stores, whose classes differ in their order, and return their paths."""
    first = _write("x.h5", make_records(3), classes=["cat", "dog", "cow"])
    return [first, _write("y.lmdb", make_records(5), classes=["ant", "cow", "cat"])]


@pytest.mark.parametrize(
    ("select", "labels", "keys"),
    [
        ("label == 'cow'", [2, 2, 2], ["k2", "k1", "k4"]),
        ("label in [0, 3] and record != 3", [0, 0, 3], ["k0", "k2", "k3"]),
        ("record >= 6 and width == 4", [3, 2], ["k3", "k4"]),
    ],
    ids=["class", "numbers", "record"],
)
def test_an_expression_selects_records_of_all_stores(select, labels, keys):
    source = StoreInput(_pets(), select=select)
    assert _labels_and_keys(source) == (labels, keys)
    assert source.manifest.options["select"] == select
    middle = source.read(1, 2)
    assert (middle.records["label"].tolist(), middle.keys) == (labels[1:2], keys[1:2])
    assert keys[1] in source.name(1)


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("label > 90", r"C205.*input\.select = label > 90: no record of 8 fulfils it"),
        ("size == 3", r"C204.*input\.select = .*'size' is not known.*choose from label, height"),
        ("label = 3", r"C204.*input\.select = label = 3: cannot be read.*'input\.select=label in"),
    ],
    ids=["empty", "unknown", "grammar"],
)
def test_a_selection_that_cannot_be_made_says_so(select, words):
    with pytest.raises(ConfigError, match=words):
        _ = StoreInput(_pets(), select=select).manifest


def test_a_table_replaces_values_of_the_records_that_it_names():
    Path("t.csv").write_text("index,label\n7,cat\n0,ant\n")
    source = StoreInput(_pets(), relabel="t.csv")
    assert _labels_and_keys(source)[0] == [3, 1, 2, 3, 2, 0, 3, 0]
    assert (
        source.read(0, 8).records["image"].tolist()
        == StoreInput(_pets()).read(0, 8).records["image"].tolist()
    )
    assert source.manifest.options["relabel"].startswith("t.csv (sha256 ")


# ---- new fields


def describe(record, unit="px"):
    """Return new fields of every sort, and spoil the record, which is the function's own."""
    label, image = int(record["label"]), record["image"]
    image[:] = 0
    boxes = np.zeros((label, 4))
    return {"score": label / 4, "name": f"{record['key']} {unit}", "boxes": boxes, "size": [4, 4]}


def test_a_function_makes_new_fields_of_each_record():
    Path("t.csv").write_text("key,label\nk0,c\n")
    path = _write("x.h5", make_records(4))
    add = partial(describe, unit="mm")
    source = StoreInput(path, relabel="t.csv", select="label != 1", add=add)
    source.kinds = {"boxes": "boxes"}
    fields = source.manifest.fields
    assert list(fields) == ["image", "label", "score", "name", "boxes", "size"]
    assert (fields["name"].kind, fields["boxes"].kind) == ("text", "boxes")
    records, keys = source.read(0, 3)
    assert keys == ["k0", "k2", "k3"]
    assert records["score"].tolist() == [0.5, 0.5, 0]
    assert [bytes(name) for name in records["name"]] == [b"k0 mm", b"k2 mm", b"k3 mm"]
    assert [len(boxes) for boxes in records["boxes"]] == [2, 2, 0]
    assert records["image"].tolist() == make_records(4)["image"][[0, 2, 3]].tolist()
    assert source.manifest.options["add"] == "tests.input.test_store.describe"


def test_a_function_gets_values_as_it_may_return_them():
    given = []

    def look(record):
        given.append(record)
        return {"x": 1}

    fields = {
        "image": Field("uint8", (3, None, None), "image"),
        "note": Field("uint8", (None,), kind="text"),
        "blob": Field("uint8", (None,), kind="bytes"),
        "points": Field("float32", (None, 2), kind="points"),
    }
    strings = [np.frombuffer(text, np.uint8) for text in ("ü".encode(), b"\xff\0")]
    points = np.ones((3, 2), np.float32)
    values = [jpeg(0), *strings, points]
    path = _write("x.h5", {name: [v] for name, v in zip(fields, values, strict=True)}, fields, ())
    _ = StoreInput(path, add=look).manifest
    record = given[0]
    assert list(record) == ["key", *fields]
    values = [record[name] for name in ("key", "image", "note", "blob")]
    assert values == ["k0", jpeg(0), "ü", b"\xff\0"]
    assert record["points"].tolist() == points.tolist()


BAD = {"other": {"y": 1}, "shape": {"x": [1, 2]}, "none": None, "number": 0.5, "empty": {}}


def spoiled(record, how):
    """Return what no store can hold, but for the first record."""
    if record["key"] == "k0":
        return {"x": 1}
    return {"x": 1 // 0} if how == "raise" else BAD[how]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("other", r"D167.*x\.h5: record 1 \(k1\).* the fields y, but the first record has x"),
        ("shape", r"D167.*record 1 \(k1\): x: is int64 \(2,\), but the first record has int64"),
        ("none", r"D167.*record 1 \(k1\): .*spoiled returned None; return a dict"),
        ("number", r"D167.*spoiled returned 0\.5; return a dict"),
        ("empty", r"D167.*spoiled returned \{\}; return a dict"),
        ("raise", r"U100.*test_store.py:\d+: in spoiled: ZeroDivision.*\(x\.h5: record 1 \(k1\)\)"),
    ],
)
def test_a_function_that_fails_or_differs_is_named_with_its_record(how, words):
    source = StoreInput(_write("x.h5", make_records(3)), add=partial(spoiled, how=how))
    _ = source.manifest
    with pytest.raises(DataError, match=words):
        source.read(0, 3)


def test_a_field_that_the_records_have_is_not_added():
    source = StoreInput(_write("x.h5", make_records(3)), add=lambda _: {"x": 1, "label": 2})
    words = r"D255.*input\.add = .*: makes the field label, which.* already.*input\.relabel=TABLE"
    with pytest.raises(DataError, match=words):
        _ = source.manifest


# ---- packed


def add_half(record):
    return {"half": float(record["label"]) / 2}


def _changed():
    """Return the records of a store with every option, in several jobs."""
    if not Path("base.h5").exists():
        pack_store.pack(packing("base.h5"))
    rows = [f"k{number},b" for number in range(0, 4000, 9)]
    Path("t.csv").write_text("\n".join(["key,label", *rows]) + "\n")
    return StoreInput("base.h5", "t.csv", "label < 2 and record != 7", add_half)


def test_the_number_of_processes_does_not_change_a_byte_of_what_is_selected():
    contents = []
    for num_workers in (0, 2):
        packed = pack_store.pack(packing("x.h5", _changed()), num_workers)
        contents.append(content("x.h5"))
    assert contents[0] == contents[1]
    assert verify_store.verify("x.h5", 0, lambda _: None).findings == []
    assert packed.manifest is not None
    kept = [n for n in range(4000) if (n % 9 == 0 or n % 3 < 2) and n != 7]
    labels = [1 if n % 9 == 0 else n % 3 for n in kept]
    assert list(packed.manifest.class_counts) == [*np.bincount(labels), 0]
    store = open_store("x.h5")
    read = store.read(torch.arange(len(kept)))
    assert read["label"].tolist() == labels
    assert read["half"].tolist() == [label / 2 for label in labels]
    assert [store.key(index) for index in range(len(kept))] == [f"k{n}" for n in kept]


@pytest.mark.parametrize("change", ["none", "table", "function"])
def test_finished_jobs_are_kept_only_for_the_same_records_and_values(change):
    def interrupt(now):
        if now.items > now.num_items / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_store.pack(packing("x.h5", _changed()), on_progress=interrupt)
    source = _changed()
    if change == "table":
        Path("t.csv").write_text("key,label\nk0,c\n")
    elif change == "function":
        source = StoreInput("base.h5", "t.csv", source.select, partial(add_half))
    packed = pack_store.pack(packing("x.h5", source))
    assert (packed.resumed > 0) == (change == "none")
    pack_store.pack(packing("straight.h5", source))
    assert content("x.h5") == content("straight.h5")
