import os
from pathlib import Path

import pytest

from framework.errors import DataError
from framework.store.hdf5_store import HDF5Store
from framework.store.open_store import open_store
from framework.store.versions import files_of, num_versions, split_version
from tests.conftest import make_records, write_store
from tests.contract.cases import edit


@pytest.fixture
def store():
    """Write a store with three versions, and return its path."""
    path = write_store("d.h5", make_records(6))
    edit(path, "drop", "label == 1")
    edit(path, "append", "d.h5@1")
    return path


def test_a_path_means_the_newest_version_or_the_one_it_names(store):
    counts = [open_store(path).manifest.num_records for path in (store, "d.h5@2", "d.h5@1")]
    assert counts == [10, 4, 6]
    assert [open_store(f"d.h5@{n}").manifest.version for n in (1, 2, 3)] == [1, 2, 3]


def test_the_first_version_is_the_plain_store(store):
    assert type(open_store("d.h5@1")) is HDF5Store


def test_a_file_whose_name_looks_like_a_version_is_that_file():
    path = write_store("x@2.h5", make_records(3))
    os.rename(path, "x@2")
    Path("x").write_text("something else")
    assert split_version("x@2") == ("x@2", None)
    assert open_store("x@2").manifest.num_records == 3


@pytest.mark.parametrize("number", [0, 4, 99])
def test_a_version_that_does_not_exist_is_refused(store, number):
    with pytest.raises(DataError, match=rf"D250.*d.h5@{number}.*there are 3"):
        open_store(f"d.h5@{number}")


def test_a_missing_layer_is_noticed(store):
    os.remove("d.h5.layer2")
    with pytest.raises(DataError, match=r"D250.*d.h5.layer2: is missing, and d.h5.layer3 needs it"):
        open_store(store)
    assert open_store("d.h5@1").manifest.num_records == 6


def test_a_layer_is_no_store(store):
    with pytest.raises(DataError, match=r"D250.*is a layer of d.h5"):
        open_store("d.h5.layer2")


def test_links_share_the_versions_of_their_store(store):
    os.mkdir("elsewhere")
    os.symlink(os.path.abspath(store), "elsewhere/link.h5")
    assert num_versions("elsewhere/link.h5") == 3
    assert open_store("elsewhere/link.h5").manifest.num_records == 10


def test_the_files_of_a_version_are_the_store_and_its_layers(store):
    assert files_of(store) == ["d.h5", "d.h5.layer2", "d.h5.layer3"]
    assert files_of("d.h5@2") == ["d.h5", "d.h5.layer2"]
    assert files_of("d.h5@1") == ["d.h5"]
