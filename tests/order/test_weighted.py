from pathlib import Path

import numpy as np
import pytest

from framework.errors import ConfigError
from framework.order.batches import Order
from framework.order.weighted import WeightedOrder
from tests.order.facts import Facts, counts_of


def order_of(values, field="weight", file=None, training=True):
    plain = Order(4, 2, shuffle=True)
    return WeightedOrder(field, file).order(plain, Facts(values), training)


def test_records_come_by_the_weights_of_a_field():
    assert counts_of(order_of([0, 1, 1, 2]), 0).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("path", ["w.npy", "w.txt"])
def test_records_come_by_the_weights_in_a_file(path):
    np.save("w.npy", np.array([3, 0, 0, 1]))
    Path("w.txt").write_text("3\n0\n0\n1\n")
    assert counts_of(order_of([], None, path), 0).tolist() == [3, 0, 0, 1]


def test_validation_has_every_record_once():
    assert counts_of(order_of([0, 1, 1, 2], training=False), 0).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("given", [(None, None), ("a", "b")])
def test_exactly_one_source_of_weights_is_needed(given):
    with pytest.raises(ConfigError, match=r"C202.*order\.field=FIELD or order\.file=FILE"):
        WeightedOrder(*given)


@pytest.mark.parametrize("bad", [[1, 2, 3], [1, -1, 1, 1], [1, np.nan, 1, 1], [[1], [1], [1], [1]]])
def test_what_is_no_weight_is_refused(bad):
    with pytest.raises(ConfigError, match=r"C202.*order\.field = weight"):
        order_of(bad)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"1\nx\n", b"1 2\n3 4\n"])
@pytest.mark.parametrize("path", ["w.npy", "w.txt"])
def test_a_file_that_holds_no_weights_is_refused(path, content):
    Path(path).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"C202.*order\.file = {path}"):
        order_of([], None, path)


def test_a_missing_or_a_pickled_file_is_refused():
    with pytest.raises(ConfigError, match=r"C202.*cannot be read"):
        order_of([], None, "missing.npy")
    np.save("objects.npy", np.array([object()] * 4), allow_pickle=True)
    with pytest.raises(ConfigError, match=r"C202.*cannot be read"):
        order_of([], None, "objects.npy")
