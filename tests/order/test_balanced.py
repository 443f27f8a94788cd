import numpy as np
import pytest

from framework.order.balanced import BalancedOrder
from framework.order.batches import Order
from tests.order.facts import Facts, counts_of

LABELS = np.array([5] * 70 + [-1] * 20 + [2] * 9 + [7])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("epoch", [0, 5])
def test_classes_come_equally_often(seed, epoch):
    order = BalancedOrder("label").order(Order(100, 8, seed, True), Facts(LABELS), True)
    counts = counts_of(order, epoch)
    assert [int(counts[label == LABELS].sum()) for label in (5, -1, 2, 7)] == [25, 25, 25, 25]
    for label in (5, -1, 2, 7):
        own = counts[label == LABELS]
        assert own.max() - own.min() <= 1


def test_validation_has_every_record_once():
    order = BalancedOrder("label").order(Order(100, 8), Facts(LABELS), False)
    assert counts_of(order, 0).tolist() == [1] * 100
