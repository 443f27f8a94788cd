"""Kinds of columns and files, and decoded groups of rows."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.errors import ConfigError, DataError
from framework.store import column_files
from framework.store.parquet_store import ParquetStore
from tests.contract.cases import encoded_records, jpeg, plain, rows, write_parquet

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
EMPTY = pa.array([[[]], [[]]], pa.list_(pa.list_(pa.int8())))


def _write(columns, path="x.parquet", row_group_size=2, metadata=None):
    """Write a file of these columns, name -> list or pyarrow array, and return its path."""
    table = pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=row_group_size)
    return path


def _read(path="x.parquet", count=None, **options):
    store = ParquetStore(path, **options)
    return store.read(torch.arange(len(store) if count is None else count))


def test_numbers_and_lists_of_a_fixed_size_are_raw_fields():
    columns = {
        "flag": [True, False, True],
        "small": pa.array([1, 2, 3], pa.uint8()),
        "score": pa.array([0.5, 1.5, 2.5], pa.float32()),
        "fixed": pa.array([[1, 2]] * 3, pa.list_(pa.int16(), 2)),
        "grid": pa.array([[[1, 2], [3, 4]]] * 3, pa.list_(pa.list_(pa.int64(), 2), 2)),
    }
    records = _read(_write(columns))
    shapes = {name: (str(values.dtype), tuple(values.shape)) for name, values in records.items()}
    assert shapes == {
        "flag": ("torch.bool", (3,)),
        "small": ("torch.uint8", (3,)),
        "score": ("torch.float32", (3,)),
        "fixed": ("torch.int16", (3, 2)),
        "grid": ("torch.int64", (3, 2, 2)),
    }
    assert records["fixed"].tolist() == [[1, 2]] * 3
    assert records["grid"][2].tolist() == [[1, 2], [3, 4]]


def test_other_lists_are_ragged_fields():
    columns = {"x": [[1], [], [2, 3], [4]], "y": [[], [], [[0.5, 1.5]], [[2.5, 3.5]] * 2]}
    store = ParquetStore(_write(columns))
    fields = {name: (field.dtype, field.shape) for name, field in store.manifest.fields.items()}
    assert fields == {"x": ("int64", (None,)), "y": ("float64", (None, 2))}
    assert plain(store.read(torch.tensor([3, 0, 2]))) == {
        name: [values[3], values[0], values[2]] for name, values in columns.items()
    }
    assert plain(store.read(torch.tensor([1, 0])))["y"] == [[], []]


def test_kinds_make_boxes_texts_and_bytes():
    columns = {"boxes": [[], [[1, 2, 3, 4]]], "word": ["a", "b\u00fc"], "sound": [b"x", b""]}
    columns["joints"] = [[[[1.0, 2.0]]], []]
    kinds = {"boxes": "boxes", "sound": "bytes", "joints": "points"}
    store = ParquetStore(_write(columns), kinds=kinds)
    fields = store.manifest.fields
    expected = {"boxes": "boxes", "word": "text", "sound": "bytes", "joints": "points"}
    assert {name: fields[name].kind for name in expected} == expected
    assert (fields["boxes"].dtype, fields["joints"].shape) == ("float32", (None, 1, 2))
    records = store.read(torch.arange(2))
    assert plain(records)["boxes"] == columns["boxes"]
    assert [bytes(word).decode() for word in records["word"].arrays()] == columns["word"]


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"x": "text"}, r"C179\]: data\.kinds\.x = text: the column x is list<.*cannot be text"),
        ({"z": "text"}, r"C179\]: data\.kinds\.z: is not a field; its fields are x, y"),
        ({"x": "boxes"}, r"D167.*column x: is float32 \(3,\), and data\.kinds wants boxes"),
        ({"y": "ragged"}, r"C179.*the column y is int64, which cannot be ragged"),
    ],
)
def test_kinds_that_do_not_fit_are_refused(kinds, words):
    with pytest.raises((ConfigError, DataError), match=words):
        _ = ParquetStore(_write({"x": [[1, 2], [3]], "y": [1, 2]}), kinds=kinds).manifest


@pytest.mark.parametrize(
    ("labels", "expected", "classes"),
    [
        (["dog", "cat", "dog"], [1, 0, 1], ["cat", "dog"]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), [1, 0, 1], ["a", "b"]),
        ([2, 0, 2], [2, 0, 2], ["0", "1", "2"]),
        ([0.5, 1.5, 0.0], [0.5, 1.5, 0.0], []),
    ],
)
def test_labels_are_numbers_or_names_of_classes(labels, expected, classes):
    store = ParquetStore(_write({"label": labels}))
    assert store.read(torch.arange(3))["label"].tolist() == expected
    assert store.manifest.classes == classes


def test_the_names_of_a_class_label_are_the_classes():
    about = {"info": {"features": {"label": {"names": ["x", "y", "z"], "_type": "ClassLabel"}}}}
    manifest = ParquetStore(_write({"label": [0, 2, 2]}, metadata=about)).manifest
    assert (manifest.classes, manifest.class_counts) == (["x", "y", "z"], [1, 0, 2])
    for hostile in ({}, [], {"info": 3}, {"info": {"features": {"label": {"names": "abc"}}}}):
        manifest = ParquetStore(_write({"label": [0, 2, 2]}, metadata=hostile)).manifest
        assert manifest.classes == ["0", "1", "2"]


def test_classes_and_columns_can_be_chosen():
    _write({"img": [jpeg(0)] * 3, "fine": ["a", "b", "c"], "text": ["x"] * 3})
    fields = {"image": "img", "label": "fine"}
    store = ParquetStore("x.parquet", fields, ["c", "b", "a", "d"])
    assert store.read(torch.arange(3))["label"].tolist() == [2, 1, 0]
    assert store.manifest.classes == ["c", "b", "a", "d"]
    with pytest.raises(DataError, match=r"D161.*1 classes are not in data\.classes: c"):
        _ = ParquetStore("x.parquet", fields, ["a", "b"]).manifest


@pytest.mark.parametrize(
    "column",
    [
        [{"x": 1}] * 2,
        pa.array([1, 2], pa.timestamp("s")),
        pa.array([["a"], ["b"]]),
        pa.array([None, None]),
    ],
)
def test_a_column_that_no_store_holds_is_named_with_the_way_to_choose_others(column):
    words = r"D167.*the column x is .* cannot hold.*'data\.fields=\{image: image, label: label\}'"
    with pytest.raises(DataError, match=words):
        _ = ParquetStore(_write({"image": [jpeg(0)] * 2, "label": [0, 1], "x": column})).manifest


def test_nulls_are_errors_of_their_rows():
    files = [{"bytes": jpeg(0), "path": None}, {"bytes": None, "path": "x.jpg"}, None]
    store = ParquetStore(_write({"image": files, "label": [0, 1, None]}))
    assert store.read(torch.tensor([0]))["label"].tolist() == [0]
    with pytest.raises(DataError, match=r"D162.*row 1: image: has no bytes; its image lies"):
        store.read(torch.tensor([1]))
    with pytest.raises(DataError, match=r"D162.*row 2: (image|label): has no"):
        store.read(torch.tensor([2]))


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ([[[1], [1, 2]], []], r"D102.*group 0 cannot be read.*lists of 1 and of 2 values"),
        ([[1, None], [1, 2]], r"D102.*a value in a list is missing"),
        (EMPTY, r"D167.*column x: has only empty lists"),
    ],
)
def test_lists_that_are_no_arrays_are_refused(lists, words):
    with pytest.raises(DataError, match=words):
        _ = ParquetStore(_write({"x": lists})).manifest


def test_several_files_are_one_store():
    for number in range(3):
        _write({"x": [number, number + 10]}, f"data/train-{number:05}-of-00003.parquet")
    for path in ("data", "data/train-*.parquet"):
        store = ParquetStore(path)
        assert store.read(torch.arange(6))["x"].tolist() == [0, 10, 1, 11, 2, 12]
        assert store.key(3) == "train-00001-of-00003.parquet:1"
        assert store.name(3).endswith("data/train-00001-of-00003.parquet: row 1")


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("train.parquet", "validation.parquet"),
        ("plain/train-00000-of-00001-0123abc.parquet", "other/train-00000-of-00001.parquet"),
    ],
)
def test_splits_are_not_mixed(names):
    for name in names:
        _write({"x": [1]}, f"set/{name}")
    with pytest.raises(DataError, match=r"D192.*set: holds several splits: .*'data\.train=set/"):
        ParquetStore("set")
    with pytest.raises(DataError, match=r"D192.*'input\.path=set/"):
        ParquetStore("set", group="input")


def _saved(path, tables, stream=True):
    """Write a folder as ``datasets.save_to_disk`` does, and return its path."""
    os.makedirs(path)
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        with make(f"{path}/{name}", table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    Path(path, "state.json").write_text(json.dumps(state))
    Path(path, "cache-1.arrow").write_bytes(b"a cache is no data")
    return path


@pytest.mark.parametrize("stream", [True, False])
def test_a_folder_of_save_to_disk_is_read(stream):
    records = encoded_records(6)
    tables = [
        pa.table({"image": records["image"][part], "label": records["label"][part]})
        for part in (slice(0, 3), slice(3, 6))
    ]
    store = ParquetStore(_saved("saved", tables, stream))
    assert plain(store.read(torch.tensor([5, 0, 5]))) == rows(records, [5, 0, 5])


def test_only_the_newest_groups_are_kept(monkeypatch):
    store = ParquetStore(_write({"x": np.arange(10**6)}, row_group_size=10**5), cache_mb=2)
    for row in (0, 10**5, 2 * 10**5, 3 * 10**5, 0):
        assert store.read(torch.tensor([row]))["x"].tolist() == [row]
        assert sum(f.result().num_bytes for f in store._files._groups.values()) < 2.1e6


def test_a_file_that_is_replaced_is_noticed():
    store = ParquetStore(_write({"x": [1, 2, 3]}))
    store.read(torch.tensor([0]))
    os.rename(_write({"x": [4, 5, 6]}, "y.parquet"), "x.parquet")
    with pytest.raises(DataError, match="D117"):
        store.check()
    with pytest.raises(DataError, match="D117"):
        store.read(torch.tensor([2]))


def test_a_file_that_is_cut_off_anywhere_is_refused():
    whole = Path(write_parquet("x.parquet", encoded_records(5))).read_bytes()
    for size in range(0, len(whole), 211):
        Path("x.parquet").write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"D102"):
            _read()


X = {"x": column_files.FieldColumn("x", "array")}


def _files(cache_mb=1):
    for number in range(2):
        table = pa.table({"x": np.arange(5) + 10 * number})
        parquet.write_table(table, f"{number}.parquet", row_group_size=2)
    return column_files.ColumnFiles(["0.parquet", "1.parquet"], cache_mb)


def test_rows_have_a_group_and_a_file():
    files = _files()
    assert files.firsts.tolist() == [0, 2, 4, 5, 7, 9, 10]

    assert [files.row(index) for index in (4, 5)] == [("0.parquet", 4), ("1.parquet", 0)]
    assert files.group(4, X, None).values["x"].values.tolist() == [12, 13]


def test_a_group_is_decoded_by_one_thread_and_others_wait(monkeypatch):
    files, calls, may_go = _files(), [], threading.Event()
    decoded = files._decoded

    def slow(*arguments):
        calls.append(arguments)
        may_go.wait()
        return decoded(*arguments)

    monkeypatch.setattr(files, "_decoded", slow)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(files.group(1, X, None))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    may_go.set()
    for thread in threads:
        thread.join()
    assert (len(calls), len(results)) == (1, 5)


def test_a_group_that_failed_is_tried_again(monkeypatch):
    files = _files()
    with monkeypatch.context() as patch:
        patch.setattr(column_files, "MOST_GROUP_BYTES", 1)
        with pytest.raises(DataError, match=r"D102.*group 0 has .* bytes, which must be decoded"):
            files.group(0, X, None)
    assert files.group(0, X, None).values["x"].values.tolist() == [0, 1]


BOMBS = {
    "numbers": {"x": [[0] * 200_000] * 2},
    "texts": {"x": [bytes(50_000)] * 5000},
    "plain texts": {"x": [bytes(2_000_000)] * 9},
}


@pytest.mark.parametrize("table", BOMBS.values(), ids=BOMBS)
def test_a_group_that_expands_enormously_is_refused(table, monkeypatch):
    monkeypatch.setattr(column_files, "most_bytes", lambda _: 1 << 20)
    parquet.write_table(pa.table(table), "x.parquet", compression="zstd")
    with pytest.raises(DataError, match=r"D102.*x\.parquet: group 0 cannot be read \(its rows"):
        ParquetStore("x.parquet").read(torch.tensor([0]))
