"""A file of another format is refused with the choice that reads it."""

import gzip
import os
from pathlib import Path

import pytest

from framework.errors import DataError
from framework.store.file_format import file_kind, format_of, refuse_other
from framework.store.folder_store import FolderStore
from framework.store.hdf5_store import HDF5Store
from framework.store.lmdb_store import LMDBStore
from framework.store.open_store import open_store
from framework.store.parquet_store import ParquetStore
from tests.conftest import make_records, write_store
from tests.contract.cases import encoded_records, jpeg, write_parquet, write_tar


@pytest.fixture
def files():
    """Write a file or a folder of each format, and return paths by the choice that reads them."""
    os.makedirs("tars")
    os.makedirs("rows")
    tar = write_tar("tars/x.tar", [("a.jpg", jpeg(0))])
    parquet = write_parquet("rows/x.parquet", encoded_records(3))
    packed = {
        f"packed.{end}": write_store(f"packed.{end}", make_records(3)) for end in ("h5", "lmdb")
    }
    return {
        "tar": (tar, "tars"),
        "parquet": (parquet, "rows"),
        "hdf5": (packed["packed.h5"],),
        "lmdb": (packed["packed.lmdb"],),
    }


def test_formats_are_recognized_by_content(files):
    for choice, paths in files.items():
        assert [format_of(path).choice for path in paths] == [choice] * len(paths)
    Path("text").write_text("just text")
    os.makedirs("empty")
    assert [format_of(name) for name in ("text", "empty", "gone", "*.tar")] == [None] * 4
    assert file_kind(b"") is None


@pytest.mark.parametrize("choice", ["tar", "parquet"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_packed_stores_choice_names_the_right_one_and_the_command_that_packs(
    files, choice, place
):
    path = files[choice][place]
    words = (
        rf"D103.*is a .*data={choice}, or pack it: paceline pack input={choice} input.path={path}"
    )
    opened = [open_store] if place else [HDF5Store, LMDBStore, open_store]
    for make in opened:
        with pytest.raises(DataError, match=words):
            _ = make(path).manifest


@pytest.mark.parametrize(
    ("store", "own", "other"), [(HDF5Store, "hdf5", "lmdb"), (LMDBStore, "lmdb", "hdf5")]
)
def test_a_store_of_the_other_packed_format_is_named(files, store, own, other):
    words = rf"D103.*data={own} does not read; choose data={other}"
    with pytest.raises(DataError, match=words):
        _ = store(files[other][0]).manifest


IDX = b"\0\0\x08"


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [
        pytest.param(
            "x", b"\x93NUMPY", "input=arrays input.path=x output.path=x.packed.h5", id="array"
        ),
        pytest.param(
            "a b.csv", b"image,label\n", """input=list 'input.path="a b.csv"'""", id="csv"
        ),
        pytest.param(
            "x.tfrecord-00000",
            b"\1",
            "input=tfrecord .*'input.features={image: image/encoded,",
            id="tfrecord",
        ),
        pytest.param(
            "x.gz",
            gzip.compress(IDX + b"\3"),
            "input=idx input.images=x.gz input.labels=LABELS",
            id="images of idx",
        ),
        pytest.param(
            "train-labels-idx1-ubyte",
            IDX + b"\1",
            "input=idx input.images=train-images-idx3-ubyte input.labels=train-labels-idx1-ubyte",
            id="usual names of idx",
        ),
    ],
)
def test_files_that_only_packing_reads_are_answered_with_its_command(name, head, words):
    Path(name).write_bytes(head)
    for make in (HDF5Store, LMDBStore, open_store):
        with pytest.raises(DataError, match=rf"D103.*pack it: paceline pack {words}"):
            _ = make(name).manifest
    with pytest.raises(DataError, match="D103"):
        ParquetStore(name)


def test_a_folder_of_images_is_none_of_them(files):
    for choice in ("tar", "parquet"):
        for path in files[choice]:
            with pytest.raises(DataError, match=rf"D103.*data=folder does not read.*data={choice}"):
                FolderStore(path)
    refuse_other("empty", "folder")
