import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import ConfigError
from framework.pack.engine.packing import Packing
from framework.store.folder_store import FolderWriter
from framework.store.hdf5_store import HDF5Writer
from tests.input.inputs import Input, packing


@given(st.integers(0, 200), st.integers(1, 20))
def test_shares_hold_every_job_once(num_jobs, parts):
    shares = [packing(part=part, parts=parts).share(num_jobs) for part in range(parts)]
    assert [number for share in shares for number in share] == list(range(num_jobs))


@pytest.mark.parametrize(
    "options",
    [{"part": 3, "parts": 3}, {"part": -1, "parts": 3}, {"parts": 3}, {"parts": 0}, {"part": 1}],
)
def test_a_share_that_cannot_be_is_refused(options):
    with pytest.raises(ConfigError, match=r"C151\]: pack\.part = .*, pack\.parts = "):
        packing(**options)


def test_a_way_with_bad_items_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"C150\]: pack\.on_error = maybe"):
        packing(on_error="maybe")


def test_what_is_no_file_cannot_be_a_folder_of_files():
    with pytest.raises(ConfigError, match=r"C150\]: pack\.one_file"):
        Packing(Input(), FolderWriter, "out", make_part=HDF5Writer, one_file=False)
