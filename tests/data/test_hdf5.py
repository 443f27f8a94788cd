import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts import Field
from framework.data.hdf5 import HDF5Store, HDF5Writer, RowGather
from framework.data.manifest import to_json
from framework.errors import DataError
from tests.conftest import make_records, write_store
from tests.contract.cases import IMAGE_FIELDS, plain, write_case

DTYPES = [
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "bool",
    "complex64",
]


def _edit(path, change):
    """Change the packed file at ``path`` with h5py."""
    with h5py.File(path, "r+") as file:
        change(file)


def _manifest(file, **changes):
    file.attrs["manifest"] = json.dumps({**json.loads(file.attrs["manifest"]), **changes})


@pytest.mark.parametrize("kind", ["hdf5", "hdf5_images"])
@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99, 0.9999])
def test_a_truncated_store_is_named(kind, part):
    path, _ = write_case(kind, 40)
    os.truncate(path, int(os.path.getsize(path) * part))
    with pytest.raises(DataError, match=rf"D10\d.*{kind}\.h5"):
        HDF5Store(path).read(torch.arange(40))


def test_a_missing_store_is_named():
    with pytest.raises(DataError, match=r"D101.*gone\.h5.*no such file"):
        _ = HDF5Store("gone.h5").manifest


def test_a_folder_is_not_a_store():
    os.mkdir("x.h5")
    with pytest.raises(DataError, match=r"D101.*x\.h5"):
        _ = HDF5Store("x.h5").manifest


def test_a_random_file_is_not_a_store():
    Path("x.h5").write_bytes(np.random.default_rng(0).bytes(5000))
    with pytest.raises(DataError, match=r"D102.*x\.h5.*not an HDF5 file"):
        _ = HDF5Store("x.h5").manifest


def test_somebody_elses_hdf5_file_is_not_a_store():
    with h5py.File("x.h5", "w") as file:
        file["images"] = np.zeros((3, 4))
    with pytest.raises(DataError, match=r"D103.*x\.h5.*not a store of ours"):
        _ = HDF5Store("x.h5").manifest


def test_somebody_elses_attribute_called_manifest_is_damage():
    with h5py.File("x.h5", "w") as file:
        file.attrs["manifest"] = np.arange(3)
    with pytest.raises(DataError, match=r"D104.*x\.h5"):
        _ = HDF5Store("x.h5").manifest


def test_a_newer_schema_is_named():
    path = write_store("x.h5", make_records(3))
    _edit(path, lambda file: _manifest(file, schema=9))
    with pytest.raises(DataError, match=r"D104.*x\.h5.*schema 9"):
        _ = HDF5Store(path).manifest


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.pop("records/label"),
        lambda file: file.pop("records"),
        lambda file: _manifest(file, num_records=4),
        lambda file: _manifest(file, fields={"label": {"dtype": "int32", "shape": [], "encoding": "raw"}}),
        lambda file: _manifest(file, fields={"label": {"dtype": "int64", "shape": [2], "encoding": "raw"}}),
        lambda file: _manifest(file, fields={"label": {"dtype": "nonsense", "shape": [], "encoding": "raw"}}),
        lambda file: _manifest(file, fields={"label": {"dtype": "uint8", "shape": [3, None, None], "encoding": "image"}}),
    ],
)
def test_a_file_that_is_not_as_its_manifest_says_is_named(change):
    path = write_store("x.h5", make_records(3))
    _edit(path, change)
    with pytest.raises(DataError, match=r"D105.*x\.h5.*not as the manifest says"):
        HDF5Store(path).read(torch.tensor([0]))


def test_a_chunked_dataset_is_refused():
    path = write_store("x.h5", make_records(8))
    _edit(path, lambda file: file.pop("records/label") and file["records"].create_dataset("label", (8,), "int64", chunks=(2,)))
    with pytest.raises(DataError, match=r"D105.*label.*not stored in one piece"):
        HDF5Store(path).read(torch.tensor([0]))


@pytest.mark.parametrize("offsets", [[0, 5, 3, 9], [0, 1, 2, 10**9], [-1, 1, 2, 3], []])
def test_offsets_that_cannot_be_are_refused(offsets):
    path = write_store("x.h5", {"image": [b"abc", b"def", b"ghi"], "label": np.arange(3)}, IMAGE_FIELDS)

    def change(file):
        del file["records/image/offsets"]
        file["records/image/offsets"] = np.array(offsets, np.int64)

    _edit(path, change)
    with pytest.raises(DataError, match=r"D105.*image.*offsets"):
        HDF5Store(path).read(torch.tensor([0]))


def test_offsets_of_fewer_records_are_refused():
    path = write_store("x.h5", {"image": [b"abc", b"def", b"ghi"], "label": np.arange(3)}, IMAGE_FIELDS)

    def change(file):
        del file["records/image/offsets"]
        file["records/image/offsets"] = np.array([0, 3, 6], np.int64)

    _edit(path, change)
    with pytest.raises(DataError, match=r"D105.*image"):
        HDF5Store(path).read(torch.tensor([2]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (8,), (2, 3)])
def test_every_number_type_comes_back_as_it_was(dtype, shape):
    values = (np.random.default_rng(0).random((5, *shape)) * 100).astype(dtype)
    path = write_store("x.h5", {"x": values}, {"x": Field(dtype, shape)})
    found = HDF5Store(path).read(torch.tensor([4, 0, 4]))["x"]
    assert np.array_equal(found.numpy(), values[[4, 0, 4]])
    assert found.numpy().dtype == values.dtype


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_rows_are_gathered_as_torch_would(num_rows, width, data):
    rows = torch.arange(num_rows * width, dtype=torch.int32).to(torch.uint8).view(num_rows, width)
    indices = torch.tensor(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=9)), dtype=torch.int64)
    assert torch.equal(RowGather(rows)(indices), rows[indices])


def test_empty_images_are_kept():
    path = write_store("x.h5", {"image": [b"", b"ab", b""], "label": np.arange(3)}, IMAGE_FIELDS)
    assert plain(HDF5Store(path).read(torch.tensor([2, 1, 0])))["image"] == [b"", b"ab", b""]


def test_a_file_with_no_records_has_a_manifest_and_reads_nothing():
    path = write_store("x.h5", make_records(0))
    store = HDF5Store(path)
    assert store.manifest.num_records == 0
    assert store.read(torch.tensor([], dtype=torch.int64))["image"].shape == (0, 3, 4, 4)


def test_what_is_read_cannot_change_the_file():
    path = write_store("x.h5", make_records(3))
    before = Path(path).read_bytes()
    store = HDF5Store(path)
    store.read(torch.tensor([0]))["image"].fill_(7)
    next(iter(store._maps.values())).rows.fill_(7)
    store.close()
    assert Path(path).read_bytes() == before


def test_other_programs_can_read_the_store():
    records = make_records(4)
    path = write_store("x.h5", records)
    with h5py.File(path) as file:
        assert np.array_equal(file["records/image"][:], records["image"])
        assert json.loads(file.attrs["manifest"])["num_records"] == 4


def test_large_raw_fields_lie_aligned_for_the_map():
    path = write_store("x.h5", {"x": np.zeros((100, 64), np.uint8)}, {"x": Field("uint8", (64,))})
    with h5py.File(path) as file:
        assert file["records/x"].id.get_offset() % 4096 == 0


def test_images_leave_no_spool_behind_when_abandoned():
    writer = HDF5Writer("x.h5", fields=IMAGE_FIELDS, num_records=2)
    writer.write({"image": [b"abc"], "label": np.arange(1)})
    writer.abort()
    assert os.listdir() == []


def test_the_manifest_is_the_one_that_was_given():
    path = write_store("x.h5", make_records(3))
    manifest = HDF5Store(path).manifest
    with h5py.File(path) as file:
        assert file.attrs["manifest"] == to_json(manifest)
