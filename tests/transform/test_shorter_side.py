import pytest
import torch

from framework.data.reader import BatchReader
from framework.errors import ConfigError
from framework.store.hdf5_store import HDF5Store
from framework.transform.function import FunctionTransform
from framework.transform.shorter_side import ShorterSide
from tests.conftest import make_context, make_records, write_store


@pytest.mark.parametrize(
    ("size", "expected"), [((100, 200), (50, 100)), ((200, 100), (100, 50)), ((30, 41), (50, 68))]
)
def test_the_shorter_side_gets_the_length_and_the_other_follows(size, expected):
    assert ShorterSide(50, True).scaled(torch.tensor([size])).tolist() == [list(expected)]


def test_a_length_of_nothing_is_refused():
    with pytest.raises(ValueError, match="length = 0"):
        ShorterSide(0, True)


def test_alone_it_is_refused():
    store = HDF5Store(write_store("x.h5", make_records(3)))
    with pytest.raises(ConfigError, match=r"C199.*several sizes.*transform=compose"):
        BatchReader(store, make_context(transform=ShorterSide(8, True)))


def test_as_the_geometry_of_a_function_it_is_refused():
    with pytest.raises(ValueError, match=r"several sizes.*transform=compose"):
        FunctionTransform(dict, ShorterSide(8, True), evaluation=False)
