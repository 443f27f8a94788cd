import numpy as np
import pytest

from framework.contracts.records import Field, notes_of
from framework.errors import ConfigError, DataError, UserCodeError
from framework.input.dataset import DatasetInput
from framework.pack.marked import MarkedInput
from tests.data.own_items import Broken, Clips, Endless

WAVES = ["wave", "label"]


def test_items_become_records():
    source = DatasetInput(Clips(draws=False), WAVES, None)
    assert source.manifest.fields == {"wave": Field("float32", (3,)), "label": Field("int64", ())}
    assert (source.manifest.num_records, list(source.manifest.classes)) == (20, ["low", "high"])
    records, keys = source.read(4, 6)
    assert (records["wave"][:, 0].tolist(), records["label"].tolist()) == ([4, 5], [0, 1])
    assert keys == ["4", "5"]
    assert not notes_of(source)


def test_random_changes_are_drawn_once_and_noted():
    waves = [DatasetInput(Clips(), WAVES, None).read(3, 5).records["wave"] for _ in range(2)]
    assert np.array_equal(*waves)
    assert "augment=" in " ".join(notes_of(DatasetInput(Clips(), WAVES, None)))


def test_arrays_of_different_lengths_are_packed_if_kinds_says_so():
    items = [{"x": np.zeros(count)} for count in (1, 3)]
    with pytest.raises(DataError, match=r"record 1 of list: x.*'input.kinds=\{x: ragged\}'"):
        DatasetInput(items, None, None).read(0, 2)
    source = MarkedInput(DatasetInput(items, None, None), None, None, kinds={"x": "ragged"})
    assert [len(array) for array in source.read(0, 2).records["x"]] == [1, 3]


def test_a_bad_item_is_named():
    source = DatasetInput(Broken(draws=False), WAVES, None)
    with pytest.raises(UserCodeError, match=r"own_items.py:\d+: .*no such clip \(record 5 of"):
        source.read(4, 7)


@pytest.mark.parametrize("data", [Endless(), 5, "mine.Clips"])
def test_what_has_no_records_by_number_is_refused(data):
    with pytest.raises(ConfigError, match=r"C231\]: input.dataset"):
        DatasetInput(data, None, None)
