import os
from itertools import product
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from framework.contracts.records import Field, Manifest
from framework.errors import DataError
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from tests.conftest import FIELDS, edited_manifest, make_records, write_store
from tests.contract.cases import IMAGE_FIELDS, plain, write_case
from tests.store.fuzz import flips, in_a_process, judge, truncations


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


@pytest.mark.parametrize("kind", ["hdf5", "hdf5_images"])
def test_a_flipped_bit_is_refused_reported_or_harmless(kind):
    path, records = write_case(kind, 40)
    counts = judge(HDF5Store, "h5", flips(Path(path).read_bytes(), 100), plain(records), 40)
    assert counts.keys() <= {"right", "found", "refused"}


@pytest.mark.parametrize("kind", ["hdf5", "hdf5_images"])
def test_every_truncation_is_refused(kind):
    path, records = write_case(kind, 40)
    assert judge(HDF5Store, "h5", truncations(Path(path).read_bytes(), 50), plain(records), 40) == {
        "refused": 50
    }
