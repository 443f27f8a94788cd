import os
import pickle
import re
import struct
from itertools import product
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from framework.contracts.records import Field, Manifest
from framework.errors import DataError
from framework.store.hdf5_store import ForeignHDF5, HDF5Store, HDF5Writer, suggested_fields
from tests.conftest import FIELDS, edited_manifest, make_records, write_store
from tests.contract.cases import IMAGE_FIELDS
from tests.store.fuzz import in_a_process


def _edit(path, change):
    """Change the packed file at ``path`` with h5py."""
    with h5py.File(path, "r+") as file:
        change(file)


def _with_images():
    records = {"image": [b"abc", b"def", b"ghi"], "label": np.arange(3)}
    return write_store("x.h5", records, IMAGE_FIELDS)


def _manifest(file, **changes):
    file.attrs["manifest"] = edited_manifest(file.attrs["manifest"], **changes)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.pop("records/label"),
        lambda file: file.pop("records"),
        lambda file: _manifest(file, num_records=4),
        lambda file: _manifest(
            file,
            fields={"label": {"dtype": "int32", "shape": [], "encoding": "raw", "kind": "raw"}},
        ),
    ],
)
def test_a_file_that_contradicts_its_manifest_is_named(change):
    path = write_store("x.h5", make_records(3))
    _edit(path, change)
    with pytest.raises(DataError, match=r"D105.*x\.h5.*does not match the manifest"):
        HDF5Store(path).read(torch.tensor([0]))


@pytest.mark.parametrize("offsets", [[0, 5, 3, 9], [0, 1, 2, 10**9], [-1, 1, 2, 3], []])
def test_impossible_offsets_are_refused(offsets):
    path = _with_images()

    def change(file):
        del file["records/image/offsets"]
        file["records/image/offsets"] = np.array(offsets, np.int64)

    _edit(path, change)
    with pytest.raises(DataError, match=r"D105.*image.*offsets"):
        HDF5Store(path).read(torch.tensor([0]))


def test_large_raw_fields_begin_at_a_page():
    path = write_store("x.h5", {"x": np.zeros((100, 64), np.uint8)}, {"x": Field("uint8", (64,))})
    with h5py.File(path) as file:
        assert file["records/x"].id.get_offset() % 4096 == 0


def test_a_manifest_too_long_for_a_header_is_kept():
    names = [f"class number {number}" for number in range(5000)]
    writer = HDF5Writer("x.h5", fields=FIELDS, num_records=3)
    writer.write(make_records(3), ["a", "b", "c"])
    writer.close(Manifest(3, FIELDS, names, source="a test"))
    assert HDF5Store("x.h5").manifest.classes == names


SECRET = "secret.bin"


def _replace(name, make):
    """Return a change that deletes ``name`` and calls ``make(file, name)`` instead."""

    def change(file):
        del file[name]
        make(file, name)

    return change


def _linked_outside(file, name):
    with h5py.File(SECRET, "w") as other:
        other["x"] = np.arange(3)
    file[name] = h5py.ExternalLink(SECRET, "/x")


def _stored_outside(file, name):
    Path(SECRET).write_bytes(bytes(24))
    file.create_dataset(name, (3,), "int64", external=[(SECRET, 0, 24)])


def _virtual(file, name):
    with h5py.File(SECRET, "w") as other:
        other["x"] = np.arange(3)
    layout = h5py.VirtualLayout((3,), "int64")
    layout[:] = h5py.VirtualSource(SECRET, "x", (3,))
    file.create_virtual_dataset(name, layout)


def _looping(file, name):
    file[name] = h5py.SoftLink("/" + name)


def _of_pairs(file, name):
    file.create_dataset(name, (3,), np.dtype([("a", "i4"), ("b", "i4")]))


def _square(file, name):
    file[name] = np.zeros((4, 4), np.int64)


PLANTS = [_linked_outside, _stored_outside, _virtual, _looping, _of_pairs, _square]


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        *((plant, "records/label") for plant in PLANTS),
        *((_virtual, name) for name in ("records/image/data", "records/image/offsets")),
        *((_virtual, name) for name in ("crc32", "keys/data", "keys/offsets")),
    ],
)
def test_a_replaced_dataset_is_refused(plant, name):
    path = _with_images()
    _edit(path, _replace(name, plant))
    with pytest.raises(DataError, match=r"D105.*x\.h5") as caught:
        HDF5Store(path).read(torch.tensor([0]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["records", "keys"])
@pytest.mark.parametrize("plant", [_linked_outside, _looping])
def test_a_group_that_is_a_link_is_refused(plant, name):
    path = _with_images()
    _edit(path, _replace(name, plant))
    with pytest.raises(DataError, match=r"D105.*x\.h5"):
        HDF5Store(path).read(torch.tensor([0]))


def refused(paths):
    for path in paths:
        with pytest.raises(DataError, match="D105"):
            HDF5Store(path).read(torch.tensor([0]))


def test_a_foreign_file_is_never_opened():
    paths = []
    plants = product([_linked_outside, _stored_outside, _virtual], ["records/label", "keys"])
    for number, (plant, name) in enumerate(plants):
        paths.append(write_store(f"{number}.h5", make_records(3)))
        _edit(paths[-1], _replace(name, plant))
        os.remove(SECRET)
    os.mkfifo(SECRET)  # who opens it waits for ever
    assert in_a_process(refused, paths) == 0


def _file(**datasets):
    with h5py.File("x.h5", "w") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values
    return ForeignHDF5("x.h5")


def test_a_data_set_says_what_it_holds():
    file = _file(x=np.zeros((2, 3), ">i4"), text=["a"], scalar=3.0, pair=np.zeros(2, "i4,f4"))
    kinds = {name: (data.kind, data.shape) for name, data in file.listing.datasets.items()}
    assert kinds == {"scalar": ("numbers", ()), "text": ("text", (1,)), "x": ("numbers", (2, 3))}
    assert "pair" in file.listing.names


@pytest.mark.parametrize("blocks", [0, 512])
def test_contiguous_numbers_are_read_without_h5py(blocks):
    with h5py.File("x.h5", "w", userblock_size=blocks) as file:
        file["x"] = np.arange(6).reshape(2, 3)
    file = pickle.loads(pickle.dumps(ForeignHDF5("x.h5")))
    assert file.listing.datasets["x"].offset is not None
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
    assert list(file.listing.datasets) == ["x"]
    whys = {"soft": "a link", "g/link": "a link", "virtual": "a virtual data set"}
    whys |= {"raw": "stored in another file", "huge": "has chunks of 1,073,741,824 bytes"}
    assert file.listing.outside == whys


def test_a_data_set_that_declares_more_than_its_file_holds_is_left_out():
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("x", (1 << 40,), "u1", chunks=(1 << 20,))
    assert not ForeignHDF5("x.h5").listing.datasets


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
