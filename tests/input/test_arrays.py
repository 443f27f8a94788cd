import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from framework.errors import DataError
from framework.input.arrays import ArraysInput
from framework.store import foreign

X = np.random.default_rng(0).random((6, 2, 3)).astype(np.float32)
LABEL = np.array([0, 2, 1, 0, 2, 2])


def _save(**arrays):
    np.savez("x.npz", **arrays)
    return ArraysInput("x.npz", None)


def _records(source):
    return source.read(0, source.manifest.num_records).records


def test_every_array_is_a_field():
    source = _save(x=X, label=LABEL)
    assert {name: (field.dtype, field.shape) for name, field in source.manifest.fields.items()} == {
        "x": ("float32", (2, 3)),
        "label": ("int64", ()),
    }
    assert source.manifest.num_records == 6
    records, keys = source.read(1, 4)
    assert np.array_equal(records["x"], X[1:4])
    assert records["label"].tolist() == [2, 1, 0]
    assert list(keys) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        *((LABEL, ["0", "1", "2"]), (LABEL * 0.5, []), (LABEL - 1, [])),
        *((LABEL.reshape(6, 1), ["0", "1", "2"]), (LABEL.reshape(3, 2), [])),
        (np.where(LABEL == 1, -100, LABEL), ["0", "1", "2"]),  # -100 does not count
        (LABEL.astype(np.uint8), ["0", "1", "2"]),
        (LABEL > 1, ["0", "1"]),
    ],
)
def test_an_integer_label_gives_the_classes(label, classes):
    assert _save(x=X[: len(label)], label=label).manifest.classes == classes


def test_the_classes_can_be_named():
    np.savez("x.npz", label=LABEL)
    assert ArraysInput("x.npz", ["a", "b", "c", "d"]).manifest.classes == ["a", "b", "c", "d"]
    with pytest.raises(DataError, match=r"D161.*label 2.*names 2"):
        _ = ArraysInput("x.npz", ["a", "b"]).manifest


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_foreign_byte_order_and_layout_are_read_as_the_same_numbers(save):
    save("x.npz", big=X.astype(">f4"), turned=np.asfortranarray(X))
    records = _records(ArraysInput("x.npz", None))
    assert np.array_equal(records["big"], X)
    assert np.array_equal(records["turned"], X)
    assert records["big"].dtype == np.dtype("=f4")


@pytest.mark.parametrize("save", [np.save, np.savez])
def test_memory_does_not_grow_with_the_array(save):
    array = np.zeros((1 << 19, 8), np.float32)  # 16 MiB
    name = "x.npy" if save is np.save else "x.npz"
    save(name, array)
    source = ArraysInput(name, None)
    tracemalloc.start()
    for start in range(0, source.manifest.num_records, 1000):
        source.read(start, start + 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 << 20


def test_a_file_that_expands_enormously_is_refused(monkeypatch):
    monkeypatch.setattr(foreign, "MOST_SMALL_BYTES", 1000)
    zeros = np.zeros(1_000_000, np.uint8)
    np.savez_compressed("x.npz", x=zeros)
    with pytest.raises(DataError, match=r"D112.*x\.npz: declares 1,000,128 bytes.*numpy\.savez"):
        _ = ArraysInput("x.npz", None).manifest
    np.savez("x.npz", x=zeros)
    assert ArraysInput("x.npz", None).manifest.num_records == len(zeros)


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
@pytest.mark.parametrize("data", [b"", b"just text", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
def test_a_file_that_holds_no_arrays_is_named(name, data):
    Path(name).write_bytes(data)
    with pytest.raises(DataError, match=rf"D112.*{name}"):
        _ = ArraysInput(name, None).manifest


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_with_flipped_bytes_is_named(save):
    save("x.npz", x=np.random.default_rng(0).random(1000))
    data = bytearray(Path("x.npz").read_bytes())
    data[2000:2100] = bytes(100)
    Path("x.npz").write_bytes(data)
    with pytest.raises(DataError, match=r"D112.*x\.npz"):
        _ = ArraysInput("x.npz", None).manifest


@pytest.mark.parametrize(
    "x", [np.array([{}, {}]), np.array(["a", "b"]), np.array(3), np.ones(2, np.longdouble)]
)
def test_what_cannot_be_records_is_named(x):
    np.savez("x.npz", x=x)
    with pytest.raises(DataError, match=r"D112.*x\.npz"):
        _ = ArraysInput("x.npz", None).manifest


def test_nothing_is_unpickled():
    np.save("x.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"D112.*x\.npy"):
        _ = ArraysInput("x.npy", None).manifest


@pytest.mark.parametrize("arrays", [{"x": X, "label": LABEL[:5]}, {"x": X[:0]}])
def test_arrays_without_one_common_length_are_named(arrays):
    with pytest.raises(DataError, match=r"D111.*x\.npz"):
        _ = _save(**arrays).manifest
