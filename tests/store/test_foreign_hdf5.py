"""Data sets of HDF5 files that other programs wrote."""

import pickle
import re
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from framework.errors import DataError
from framework.store.hdf5_store import ForeignHDF5, suggested_fields


def _file(**datasets):
    with h5py.File("x.h5", "w") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values
    return ForeignHDF5("x.h5")


def test_a_data_set_says_what_it_holds():
    file = _file(x=np.zeros((2, 3), ">i4"), text=["a"], scalar=3.0, pair=np.zeros(2, "i4,f4"))
    kinds = {name: (data.kind, data.shape) for name, data in file.datasets.items()}
    assert kinds == {"scalar": ("numbers", ()), "text": ("text", (1,)), "x": ("numbers", (2, 3))}
    assert "pair" in file.listing.names


@pytest.mark.parametrize("blocks", [0, 512])
def test_contiguous_numbers_are_read_without_h5py(blocks):
    with h5py.File("x.h5", "w", userblock_size=blocks) as file:
        file["x"] = np.arange(6).reshape(2, 3)
    file = pickle.loads(pickle.dumps(ForeignHDF5("x.h5")))
    assert file.datasets["x"].offset is not None
    assert file.value("x").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_what_leads_out_of_the_file_is_named_and_not_read():
    with h5py.File("x.h5", "w") as file:
        file["x"] = np.zeros(6)
        file["soft"] = h5py.SoftLink("/x")
        file["g/link"] = h5py.ExternalLink("x.h5", "/x")
        layout = h5py.VirtualLayout((6,), "f8")
        layout[:] = h5py.VirtualSource("x.h5", "x", (6,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("raw", (6,), "u1", external=[("x.bin", 0, 6)])
        file.create_dataset("huge", (1,), "u1", chunks=(1 << 30,), maxshape=(None,))
    file = ForeignHDF5("x.h5")
    assert list(file.datasets) == ["x"]
    whys = {"soft": "a link", "g/link": "a link", "virtual": "a virtual data set"}
    whys |= {"raw": "stored in another file", "huge": "has chunks of 1,073,741,824 bytes"}
    assert file.listing.outside == whys


def test_a_data_set_that_declares_more_than_its_file_holds_is_left_out():
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("x", (1 << 40,), "u1", chunks=(1 << 20,))
    assert not ForeignHDF5("x.h5").datasets


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (("x", "y"), {"x": "x", "y": "y"}),
        (("a/x", "b/x"), {"x": "a/x", "x_2": "b/x"}),
        ([f"r{n}/{name}" for n in range(20) for name in "xy"], {"x": "*/x", "y": "*/y"}),
        ([f"a/b/u{n}" for n in range(20)], {"value": "*/*/*"}),
    ],
)
def test_records_are_guessed(names, fields):
    file = _file(**{name.replace("/", "__"): np.zeros(3) for name in names})
    assert suggested_fields(file) == fields


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("train/x", "train/y", "test/x", "test/y"), 'x: "train/x", y: "train/y"'),
        (("Test/x", "valid/x", "mean"), 'x: "Test/x"'),
    ],
)
def test_groups_that_are_splits_are_not_merged(names, word):
    file = _file(**{name.replace("/", "__"): np.zeros(2 + ("train" in name)) for name in names})
    word = re.escape(f"'input.fields={{{word}}}'")
    with pytest.raises(DataError, match=rf"D192.*several splits: .*name one, as in {word}"):
        suggested_fields(file)


def test_a_text_that_declares_more_than_its_file_is_not_allocated():
    with h5py.File("x.h5", "w") as file:
        file["text"] = ["x" * 99, "y"]
    data = Path("x.h5").read_bytes()
    Path("x.h5").write_bytes(data.replace(struct.pack("<I", 99), struct.pack("<I", 1 << 30)))
    with pytest.raises(DataError, match=r"D102.*1073741824 elements"):
        ForeignHDF5("x.h5").read("text", 0, 2)
