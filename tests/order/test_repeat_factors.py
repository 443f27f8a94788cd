import math

import numpy as np
import pytest

from framework.order.batches import Order
from framework.order.repeat_factors import RepeatFactorOrder, repeat_factors
from tests.order.facts import Facts, counts_of


def test_rare_classes_are_repeated_as_the_paper_says():
    labels = np.array([0] * 96 + [1] * 4)
    factors = repeat_factors(labels, np.ones(100, np.int64), np.arange(100), 0.36)
    assert factors.tolist() == [1.0] * 96 + [3.0] * 4


def test_a_record_with_several_classes_has_its_rarest_one_s_factor():
    labels, lengths = np.array([0, 0, 1, 0, 0, 2, 2]), np.array([1, 2, 0, 1, 3])
    factors = repeat_factors(labels, lengths, np.arange(5), 0.8)
    assert factors.tolist() == [1, math.sqrt(0.8 / 0.2), 1, 1, math.sqrt(0.8 / 0.2)]


def test_frequencies_are_those_of_the_records_in_use():
    labels = np.array([0] * 50 + [1] * 50)
    factors = repeat_factors(labels, np.ones(100, np.int64), np.arange(60), 0.5)
    assert factors[-1] == math.sqrt(0.5 * 60 / 10)
    assert len(factors) == 60


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_epoch_has_the_sum_of_all_factors(seed):
    labels = np.array([0] * 96 + [1] * 4)
    order = RepeatFactorOrder("label", 0.25).order(Order(100, 8, seed, True), Facts(labels), True)
    counts = counts_of(order, seed)
    assert counts.sum() == order.num_in_batches == 96 + 10
    assert set(counts[:96]) <= {1}
    assert set(counts[96:]) == {2, 3}
    assert order.num_steps == 14


@pytest.mark.parametrize("epoch", range(5))
def test_records_of_frequent_classes_come_exactly_once(epoch):
    labels = np.array([0] * 97 + [1] * 3)
    order = RepeatFactorOrder("label", 0.1).order(Order(100, 8, 0, True), Facts(labels), True)
    counts = counts_of(order, epoch)
    assert counts.sum() == 102  # 97 + 3 * 1.83
    assert set(counts[:97]) == {1}
    assert set(counts[97:]) <= {1, 2}


def test_validation_has_every_record_once():
    order = RepeatFactorOrder("label", 0.5).order(Order(4, 2), Facts([0, 0, 0, 1]), False)
    assert counts_of(order, 0).tolist() == [1] * 4
