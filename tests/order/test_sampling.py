"""Orders in which records come in proportion to weights, classes or their rarity."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import ConfigError
from framework.order.balanced import BalancedOrder
from framework.order.batches import Order
from framework.order.repeat_factors import RepeatFactorOrder, repeat_factors
from framework.order.weighted import WeightedOrder, with_weights
from tests.order.facts import Facts, counts_of

WEIGHTS = st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.0, 7.5]), min_size=1, max_size=50)
ANY = WEIGHTS.filter(any)
SEEDS = st.sampled_from([0, 1, 2])
EPOCHS = st.integers(0, 9)


def make(weights, seed=0, num_places=None, **options):
    order = Order(len(weights), options.pop("batch_size", 4), seed, True, **options)
    of_used = np.array(weights)[order.used().numpy()]
    return with_weights(order, of_used, "weights", num_places or order.num_used)


@given(ANY, SEEDS, EPOCHS, st.none() | st.integers(1, 200))
def test_each_record_comes_its_expected_number_of_times_rounded_down_or_up(
    weights, seed, epoch, num_places
):
    order = make(weights, seed, num_places)
    counts = counts_of(order, epoch)
    expected = np.array(weights) / sum(weights) * order.num_places
    assert counts.sum() == order.num_places == (num_places or len(weights))
    assert (counts >= np.floor(expected - 1e-9)).all()
    assert (counts <= np.ceil(expected + 1e-9)).all()


@given(ANY, SEEDS, EPOCHS, st.sampled_from([1, 3]))
def test_each_time_that_a_record_comes_has_a_key_of_its_own(weights, seed, epoch, world_size):
    order = make(weights, seed)
    ranks = [replace(order, world_size=world_size, rank=rank) for rank in range(world_size)]
    shares = [share for rank in ranks for share in rank.shares(epoch) if share.weight]
    keys = torch.cat([share.keys for share in shares])
    assert torch.cat([share.indices for share in shares]).equal(keys % order.num_records)
    times = enumerate(counts_of(order, epoch))
    expected = [index + len(weights) * time for index, count in times for time in range(count)]
    assert sorted(keys.tolist()) == sorted(expected)


def test_other_weights_are_another_order_and_weights_of_zero_are_refused():
    assert make([1.0, 2.0]).identity != make([2.0, 1.0]).identity
    assert make([1.0, 2.0]).identity == make([1.0, 2.0]).identity
    with pytest.raises(ConfigError, match=r"C202.*weights: all weights are 0"):
        make([0.0, 0.0])


@pytest.mark.parametrize(
    "choice",
    [WeightedOrder("weight", None), BalancedOrder("label", -100), RepeatFactorOrder("label", 0.5)],
    ids=lambda choice: type(choice).__name__,
)
def test_validation_has_every_record_once(choice):
    order = choice.order(Order(4, 2), Facts([0, 1, 1, 2]), False)
    assert counts_of(order, 0).tolist() == [1] * 4


def weighted(values, field="weight", file=None):
    return WeightedOrder(field, file).order(Order(4, 2, shuffle=True), Facts(values), True)


def test_records_come_by_the_weights_of_a_field_or_a_file():
    assert counts_of(weighted([0, 1, 1, 2]), 0).tolist() == [0, 1, 1, 2]
    np.save("w.npy", np.array([3, 0, 0, 1]))
    Path("w.txt").write_text("3\n0\n0\n1\n")
    for path in ("w.npy", "w.txt"):
        assert counts_of(weighted([], None, path), 0).tolist() == [3, 0, 0, 1]


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3], [1, -1, 1, 1], [1, np.nan, 1, 1], [[1], [1], [1], [1]]],
    ids=["too few", "negative", "not a number", "rows"],
)
def test_values_that_are_no_weights_are_refused(values):
    with pytest.raises(ConfigError, match=r"C202.*order\.field = weight"):
        weighted(values)


def test_a_file_that_holds_no_weights_is_refused():
    np.save("objects.npy", np.array([object()] * 4), allow_pickle=True)
    for name, content in {"empty": b"", "text": b"1\nx\n", "table": b"1 2\n3 4\n"}.items():
        Path(f"{name}.txt").write_bytes(content)
    Path("cut.npy").write_bytes(b"\x93NUMPY")
    for path in ("missing.npy", "objects.npy", "cut.npy", "empty.txt", "text.txt", "table.txt"):
        with pytest.raises(ConfigError, match=rf"C202.*order\.file = {path}"):
            weighted([], None, path)


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (1, 5)])
def test_classes_come_equally_often(seed, epoch):
    labels = np.array([5] * 70 + [-1] * 19 + [2] * 9 + [7])
    order = BalancedOrder("label", -1).order(Order(99, 8, seed, True), Facts(labels), True)
    counts = counts_of(order, epoch)
    for label, times in {5: 33, -1: 0, 2: 33, 7: 33}.items():
        own = counts[label == labels]
        assert own.sum() == times
        assert own.max() - own.min() <= 1
    with pytest.raises(ConfigError, match=r"C202\]: order.field = label: no record has a class"):
        BalancedOrder("label", 1).order(Order(3, 2), Facts([1, 1, 1]), True)


def test_rare_classes_are_repeated_as_the_paper_says():
    labels = np.array([0] * 96 + [1] * 4)
    factors = repeat_factors(labels, np.ones(100, np.int64), np.arange(100), 0.36)
    assert factors.tolist() == [1.0] * 96 + [3.0] * 4


@pytest.mark.parametrize(("rare", "threshold", "num_repeated"), [(4, 0.25, 10), (3, 0.1, 5)])
def test_an_epoch_has_the_sum_of_all_factors(rare, threshold, num_repeated):
    labels = np.array([0] * (100 - rare) + [1] * rare)
    for seed in range(3):
        plain = Order(100, 8, seed, True)
        order = RepeatFactorOrder("label", threshold).order(plain, Facts(labels), True)
        counts = counts_of(order, seed)
        assert counts.sum() == order.num_in_batches == 100 - rare + num_repeated
        assert set(counts[:-rare]) == {1}
        assert set(counts[-rare:]) <= {num_repeated // rare, num_repeated // rare + 1}
