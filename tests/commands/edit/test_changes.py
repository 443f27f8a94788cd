import numpy as np
import pytest
import torch

from framework.contracts.records import Field, Manifest
from framework.errors import ConfigError, DataError
from framework.pack.engine.publish import as_written
from framework.store.hdf5_store import HDF5Writer
from framework.store.open_store import open_store
from tests.conftest import FIELDS, make_records, write_store
from tests.contract.cases import edit, write_lines


def labels(path):
    store = open_store(path)
    values = store.read(torch.arange(store.manifest.num_records))["label"].tolist()
    store.close()
    return values


def test_appended_classes_are_numbered_by_their_names():
    path = write_store("d.h5", make_records(3))
    writer = HDF5Writer("more.h5", fields=FIELDS, num_records=3)
    writer.write(make_records(3), list("xyz"))
    writer.close(Manifest(3, FIELDS, ["c", "new", "a"]))
    edit(path, "append", "more.h5")
    manifest = open_store(path).manifest
    assert list(manifest.classes) == ["a", "b", "c", "new"]
    assert labels(path) == [0, 1, 2, 2, 3, 0]
    assert list(manifest.class_counts) == [2, 1, 2, 1]
    assert [open_store(path).key(index) for index in (2, 3)] == ["record-2", "x"]


def test_appended_labels_of_boxes_are_numbered_by_their_names():
    fields = {"boxes": Field("float32", (None, 4), kind="boxes"), "label": Field("int64", (None,))}
    numbers = [np.array([0, 1]), np.array([], np.int64), np.array([1])]
    boxes = [np.zeros((len(array), 4), np.float32) for array in numbers]
    for path, classes in (("d.h5", ["a", "b"]), ("more.h5", ["c", "a"])):
        writer = HDF5Writer(path, fields=fields, num_records=3)
        writer.write({"boxes": boxes, "label": numbers}, list("xyz"))
        writer.close(Manifest(3, fields, classes))
    edit("d.h5", "append", "more.h5")
    store = open_store("d.h5")
    assert list(store.manifest.classes) == ["a", "b", "c"]
    labels_of_boxes = as_written(store.read(torch.arange(6)))["label"]
    assert [array.tolist() for array in labels_of_boxes] == [[0, 1], [], [1], [2, 0], [], [0]]


def test_records_are_dropped_by_an_expression_or_by_keys():
    path = write_store("d.h5", make_records(6))
    edit(path, "drop", "label == 1")
    assert labels(path) == [0, 2, 0, 2]
    edit(path, "drop", write_lines("keys.txt", ["record-5", "record-0"]))
    assert labels(path) == [2, 0]
    assert open_store(path).key(0) == "record-2"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("label >= 0", "would drop 6 of 6 records"),
        ("label == 9", "no record"),
        ("nothing == 1", "drop = nothing == 1"),
        ("keys.txt", "a key per line"),
    ],
)
def test_what_drops_all_or_nothing_is_refused(value, what):
    path = write_store("d.h5", make_records(6))
    with pytest.raises(ConfigError, match=f"C251.*{what}"):
        edit(path, "drop", value)


def test_labels_are_names_or_numbers_of_classes():
    path = write_store("d.h5", make_records(6))
    edit(path, "relabel", write_lines("names.csv", ["key,label", "record-5,a", "record-1,c"]))
    assert labels(path) == [0, 2, 2, 0, 1, 0]
    edit(path, "relabel", write_lines("numbers.csv", ["index,label", "0,2"]))
    assert labels(path) == [2, 2, 2, 0, 1, 0]
    assert list(open_store(path).manifest.class_counts) == [2, 1, 3]


def test_a_table_mixes_names_and_numbers_of_classes():
    path = write_store("d.h5", make_records(6))
    edit(path, "relabel", write_lines("mixed.csv", ["index,label", "0,c", "1, 2", "2,a"]))
    assert labels(path) == [2, 2, 0, 0, 1, 2]


def test_a_label_that_is_a_name_and_a_number_is_the_name():
    writer = HDF5Writer("d.h5", fields=FIELDS, num_records=3)
    writer.write(make_records(3), list("xyz"))
    writer.close(Manifest(3, FIELDS, ["7", "0", "1"]))
    edit("d.h5", "relabel", write_lines("t.csv", ["index,label", "0,1", "1,2", "2,7"]))
    assert labels("d.h5") == [2, 2, 0]


@pytest.mark.parametrize("label", ["dog", "3", "-1", "9" * 50])
def test_a_label_that_is_no_class_is_refused(label):
    path = write_store("d.h5", make_records(6))
    words = r"D161.*t\.csv: line 3: '.*neither a class.*choose from a, b, c; append= of a store"
    with pytest.raises(DataError, match=words):
        edit(path, "relabel", write_lines("t.csv", ["index,label", "1,a", f"0,{label}"]))


def test_texts_and_numbers_are_replaced():
    path = write_store("d.h5", make_records(2))
    edit(path, "add", write_lines("t.csv", ["index,text,x", "1,two,2.5", "0,one,1"]))
    edit(path, "relabel", write_lines("u.csv", ["index,x,text", "1,3.5,three"]))
    records = open_store(path).read(torch.arange(2))
    assert [bytes(array).decode() for array in records["text"].arrays()] == ["one", "three"]
    assert records["x"].tolist() == [1, 3.5]


def test_a_table_that_changes_nothing_is_refused():
    path = write_store("d.h5", make_records(3))
    with pytest.raises(DataError, match=r"D253.*already"):
        edit(path, "relabel", write_lines("t.csv", ["index,label", "1,b"]))
    with pytest.raises(DataError, match=r"D253.*image is not a field with one number or text"):
        edit(path, "relabel", write_lines("t.csv", ["index,image", "1,7"]))


def test_a_field_is_added_from_a_store_by_key():
    path = write_store("d.h5", make_records(4))
    fields = {"depth": FIELDS["image"]}
    depth = make_records(5)["image"]
    order = [3, 1, 4, 0, 2]
    writer = HDF5Writer("depth.h5", fields=fields, num_records=5)
    writer.write({"depth": depth[order]}, [f"record-{number}" for number in order])
    writer.close(Manifest(5, fields))
    edit(path, "add", "depth.h5")
    assert np.array_equal(open_store(path).read(torch.arange(4))["depth"].numpy(), depth[:4])


def test_added_fields_must_be_new_and_complete():
    path = write_store("d.h5", make_records(3))
    with pytest.raises(DataError, match=r"D253.*has the fields image, label"):
        edit(path, "add", path)
    with pytest.raises(DataError, match=r"D253.*has 1 rows for 3 records"):
        edit(path, "add", write_lines("t.csv", ["index,x", "0,1"]))


def test_truth_values_are_relabelled_by_their_names():
    fields = {**FIELDS, "ok": Field("bool", ()), "score": Field("float32", ())}
    new = {"ok": np.array([False, True]), "score": np.zeros(2, np.float32)}
    records = {**make_records(2), **new}
    path = write_store("d.h5", records, fields)
    edit(path, "relabel", write_lines("ok.csv", ["index,ok", "0,True", "1,false"]))
    assert open_store(path).read(torch.arange(2))["ok"].tolist() == [True, False]
    for line in ("0,yes", "0,2"):
        with pytest.raises(DataError, match="D253"):
            edit(path, "relabel", write_lines("bad.csv", ["index,ok", line]))
    with pytest.raises(DataError, match=r"D253.*'1e39' is not float32"):
        edit(path, "relabel", write_lines("large.csv", ["index,score", "0,1e39"]))
    with pytest.raises(DataError, match=r"D253.*'1_2' is not float32"):
        edit(path, "relabel", write_lines("digits.csv", ["index,score", "0,1_2"]))
