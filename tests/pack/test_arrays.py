import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.data.hdf5 import HDF5Store, HDF5Writer
from framework.data.lmdb import LMDBStore, LMDBWriter
from framework.errors import DataError
from framework.pack.arrays import ArraysInput
from framework.pack.run import pack

X = np.random.default_rng(0).random((6, 2, 3)).astype(np.float32)
LABEL = np.array([0, 2, 1, 0, 2, 2])


def _save(**arrays):
    np.savez("x.npz", **arrays)
    return ArraysInput("x.npz")


def test_every_array_is_a_field():
    source = _save(x=X, label=LABEL)
    assert {name: (field.dtype, field.shape) for name, field in source.manifest.fields.items()} == {
        "x": ("float32", (2, 3)),
        "label": ("int64", ()),
    }
    assert source.manifest.num_records == 6
    assert np.array_equal(source.read(1, 4)["x"], X[1:4])
    assert source.read(1, 4)["label"].tolist() == [2, 1, 0]


def test_one_npy_file_is_one_field_named_by_the_file():
    np.save("signal.npy", X)
    source = ArraysInput("signal.npy")
    assert list(source.manifest.fields) == ["signal"]
    assert np.array_equal(source.read(0, 6)["signal"], X)


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        (LABEL, ["0", "1", "2"]),
        (LABEL * 0.5, []),
        (LABEL - 1, []),
        (LABEL.reshape(6, 1), []),
        (LABEL.astype(np.uint8), ["0", "1", "2"]),
    ],
)
def test_an_integer_label_gives_the_classes(label, classes):
    assert _save(x=X, label=label).manifest.classes == classes


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize(("path", "writer", "store"), [("x.h5", HDF5Writer, HDF5Store), ("x.lmdb", LMDBWriter, LMDBStore)])
def test_labels_of_any_integer_type_are_packed_and_counted(dtype, path, writer, store):
    manifest = pack(_save(x=X, label=LABEL.astype(dtype)), partial(writer, path), path, 0, lambda *_: None)
    assert manifest.class_counts == [2, 1, 3]
    assert store(path).read(torch.arange(6))["label"].tolist() == LABEL.tolist()


@pytest.mark.parametrize(("path", "writer", "store"), [("x.h5", HDF5Writer, HDF5Store), ("x.lmdb", LMDBWriter, LMDBStore)])
def test_foreign_byte_order_and_layout_are_packed_as_the_same_numbers(path, writer, store):
    values = {"big": X.astype(">f4"), "turned": np.asfortranarray(X)}
    pack(_save(**values), partial(writer, path), path, 0, lambda *_: None)
    found = store(path).read(torch.arange(6))
    assert np.array_equal(found["big"].numpy(), X)
    assert np.array_equal(found["turned"].numpy(), X)


def test_a_missing_file_is_named():
    with pytest.raises(DataError, match=r"D101.*gone\.npz"):
        _ = ArraysInput("gone.npz").manifest


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
@pytest.mark.parametrize("data", [b"", b"just text", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
def test_a_file_that_holds_no_arrays_is_named(name, data):
    Path(name).write_bytes(data)
    with pytest.raises(DataError, match=rf"D112.*{name}"):
        _ = ArraysInput(name).manifest


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_truncated_file_is_named(save, part):
    save("x.npz", x=X, label=LABEL)
    data = Path("x.npz").read_bytes()
    Path("x.npz").write_bytes(data[: int(len(data) * part)])
    with pytest.raises(DataError, match=r"D112.*x\.npz"):
        _ = ArraysInput("x.npz").manifest


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_with_flipped_bytes_is_named(save):
    save("x.npz", x=np.random.default_rng(0).random(1000))
    data = bytearray(Path("x.npz").read_bytes())
    data[2000:2100] = bytes(100)
    Path("x.npz").write_bytes(data)
    with pytest.raises(DataError, match=r"D112.*x\.npz"):
        _ = ArraysInput("x.npz").manifest


@pytest.mark.parametrize("x", [np.array([{}, {}]), np.array(["a", "b"]), np.array(3)])
def test_what_cannot_be_records_is_named(x):
    np.savez("x.npz", x=x)
    with pytest.raises(DataError, match=r"D112.*x\.npz"):
        _ = ArraysInput("x.npz").manifest


def test_nothing_is_unpickled():
    np.save("x.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"D112.*x\.npy"):
        _ = ArraysInput("x.npy").manifest


@pytest.mark.parametrize("arrays", [{"x": X, "label": LABEL[:5]}, {"x": X[:0]}])
def test_arrays_without_one_common_length_are_named(arrays):
    with pytest.raises(DataError, match=r"D111.*x\.npz"):
        _ = _save(**arrays).manifest


def test_it_reads_the_same_in_another_process():
    source = _save(x=X, label=LABEL)
    assert np.array_equal(pickle.loads(pickle.dumps(source)).read(2, 4)["x"], X[2:4])
