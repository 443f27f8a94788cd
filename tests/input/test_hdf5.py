import pickle

import h5py
import numpy as np
import pytest

from framework.errors import ConfigError, DataError
from framework.input.hdf5 import HDF5Input

X = np.random.default_rng(0).random((6, 2, 3)).astype(np.float32)
LABEL = np.array([0, 2, 1, 0, 2, 2])


def _hdf5(path="x.h5", **datasets):
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values
    return path


def _corpus(path="corpus.h5"):
    """Write utterances, in a group per speaker, and return the path."""
    with h5py.File(path, "w") as file:
        for speaker in ("anna", "ben"):
            for number in range(3):
                file[f"{speaker}/{number}/wave"] = np.arange(number + 1, dtype="i2")
                file[f"{speaker}/{number}/text"] = f"{speaker} says {number}"
                file[f"{speaker}/{number}/speaker"] = speaker
    return path


def _rows(lengths, dtype="f4"):
    rows = np.empty(len(lengths), object)
    for number, length in enumerate(lengths):
        rows[number] = np.arange(length, dtype=dtype)
    return rows


def _vlen(path, dtype, rows):
    with h5py.File(path, "a") as file:
        file.create_dataset("rows", data=rows, dtype=h5py.vlen_dtype(np.dtype(dtype)))
    return path


def _all(source):
    return source.read(0, source.manifest.num_records)


def _texts(values):
    return [bytes(value).decode() for value in values]


def test_records_lie_along_the_first_axis():
    source = HDF5Input(_hdf5(train__x=X.astype(">f4"), train__label=LABEL))
    records, keys = pickle.loads(pickle.dumps(source)).read(1, 4)
    assert np.array_equal(records["x"], X[1:4])
    assert (records["x"].dtype, records["label"].tolist()) == (np.float32, [2, 1, 0])
    assert (source.manifest.classes, list(keys)) == (["0", "1", "2"], ["1", "2", "3"])


def test_texts_and_rows_of_any_length_are_fields():
    path = _vlen(
        _hdf5(text=["Zürich", "", "b"], fixed=np.array([b"a", b"b", b"a"])),
        "i2",
        _rows([2, 0, 3], "i2"),
    )
    source = HDF5Input(path, {"text": "text", "label": "fixed", "rows": "rows"})
    records = _all(source).records
    assert _texts(records["text"]) == ["Zürich", "", "b"]
    assert [row.tolist() for row in records["rows"]] == [[0, 1], [], [0, 1, 2]]
    assert (records["label"].tolist(), source.manifest.classes) == ([0, 1, 0], ["a", "b"])


def test_a_data_set_per_record_is_found_by_a_pattern():
    fields = {"wave": "*/*/wave", "text": "*/*/text", "label": "*/*/speaker"}
    source = HDF5Input(_corpus(), fields)
    records, keys = pickle.loads(pickle.dumps(source)).read(1, 5)
    assert keys == ["anna/1", "anna/2", "ben/0", "ben/1"]
    assert [wave.tolist() for wave in records["wave"]] == [[0, 1], [0, 1, 2], [0], [0, 1]]
    assert _texts(records["text"])[0] == "anna says 1"
    assert (records["label"].tolist(), source.manifest.classes) == ([0, 0, 1, 1], ["anna", "ben"])
    assert source.name(3) == "corpus.h5: ben/0"


def test_several_files_follow_each_other():
    _hdf5("b.h5", x=X[:2])
    _hdf5("a.h5", x=X[2:])
    for path in ("?.h5", ["a.h5", "b.h5"], "."):
        source = HDF5Input(path, {"x": "x"})
        assert np.array_equal(source.read(3, 6).records["x"], np.concatenate([X[5:], X[:2]]))
        assert (source.name(5), source.item_files(0)) == (
            "./b.h5: record 1"[2 * (path != ".") :],
            (source.files[0].path,),
        )
    assert HDF5Input([_corpus(), _corpus("b")], {"wave": "*/*/wave"}).read(6, 7).keys == ["anna/0"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"x": "y"}, r"D112.*has no array y, but label, train/x, x"),
        ({"x": "*/y"}, r"D110.*the first names: label, train, train/x, x"),
        ({"x": "*", "y": "*/x"}, r"D160.*records lack a field: label, train, x"),
        ({"x": "x", "y": "train/x"}, r"D111"),
    ],
)
def test_what_does_not_fit_is_named(fields, words):
    with pytest.raises(DataError, match=words):
        _all(HDF5Input(_hdf5(x=X, train__x=X[:, :1, :1][:2], label=LABEL), fields))


@pytest.mark.parametrize("fields", [{}, "x", {"x": "x", "y": "*/x"}])
def test_fields_that_cannot_be_are_refused(fields):
    with pytest.raises(ConfigError, match=r"C162.*input\.fields"):
        HDF5Input("x.h5", fields)


@pytest.mark.parametrize("fields", [None, {"x": "*"}])
def test_links_that_are_not_read_are_noted(fields):
    with h5py.File("x.h5", "w") as file:
        file["x"] = np.zeros(6)
        file["y"] = h5py.SoftLink("/x")
    assert HDF5Input("x.h5", fields).notes[0].endswith("not read: y (a link)")
    with pytest.raises(DataError, match=r"has no array y, but x; not read: y \(a link\)"):
        _ = HDF5Input("x.h5", {"y": "y"}).manifest
