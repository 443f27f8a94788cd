"""The random orders: every record once, any part alone, and no less random than Fisher-Yates."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from framework.order import permutation as module
from framework.order.permutation import bijection, permutation, shuffled, shuffled_in_blocks

LARGE = module.MOST_SORTED + 1
SEEDS = st.integers(0, 2**40)
EPOCHS = st.integers(0, 1000)


def in_blocks(num_records, seed, epoch, block, window):
    return shuffled_in_blocks(num_records, seed, epoch, block, window, 0, num_records)


def fisher_yates(size, key, start, stop):
    """Return a part of the reference: NumPy's permutation, an unbiased Fisher-Yates shuffle."""
    order = np.random.default_rng(key % 2**63).permutation(size)
    return torch.from_numpy(order)[start:stop]


def without_c(patch):
    patch.setattr(module, "find", lambda name: None)
    module._sorted_by_keys.cache_clear()


@given(st.integers(1, 300), SEEDS, EPOCHS)
def test_a_permutation_holds_every_record_once(num_records, seed, epoch):
    assert sorted(permutation(num_records, seed, epoch).tolist()) == list(range(num_records))


def test_the_order_of_one_seed_never_changes():
    assert permutation(12, seed=0, epoch=0).tolist() == [0, 8, 11, 3, 4, 6, 2, 10, 1, 9, 5, 7]
    assert permutation(12, seed=7, epoch=3).tolist() == [0, 7, 5, 10, 6, 2, 9, 11, 3, 4, 1, 8]
    assert shuffled(10**12, 0, 0, 7, 11).tolist() == [
        457883985473,
        955002791148,
        140108589338,
        988345704002,
    ]


def test_orders_differ_between_epochs_and_between_seeds():
    orders = {
        tuple(permutation(50, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)
    }
    assert len(orders) == 25


def test_large_orders_differ_between_epochs_and_between_seeds():
    orders = {
        tuple(shuffled(LARGE, seed, epoch, 0, 9).tolist())
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


def test_a_permutation_moves_every_record_to_every_place():
    places = torch.stack([permutation(8, seed, 0) for seed in range(2000)])
    counts = torch.stack([torch.bincount(places[:, place], minlength=8) for place in range(8)])
    assert int(counts.min()) > 180  # 250 expected, standard deviation 15
    assert int(counts.max()) < 320


@given(st.integers(1, 300) | st.just(LARGE), SEEDS, EPOCHS, st.data())
def test_a_part_of_an_order_is_that_of_the_whole(num_records, seed, epoch, data):
    start = data.draw(st.integers(0, num_records))
    stop = data.draw(st.integers(start, num_records))
    part = shuffled(num_records, seed, epoch, start, stop)
    assert torch.equal(part, permutation(num_records, seed, epoch)[start:stop])


def test_who_changes_an_order_changes_no_other():
    permutation(12, 0, 0).zero_()
    assert permutation(12, 0, 0).sum() == 66


@given(SEEDS, EPOCHS, st.integers(0, 3000))
def test_a_compiled_permutation_is_the_one_torch_finds(seed, epoch, num_records):
    compiled_order = permutation(num_records, seed, epoch)
    with pytest.MonkeyPatch.context() as patch:
        without_c(patch)
        assert torch.equal(compiled_order, permutation(num_records, seed, epoch))


# ------------------------------------------------------------------------------------- bijections


@given(st.integers(1, 5000), SEEDS)
def test_a_bijection_holds_every_number_once(size, key):
    assert sorted(bijection(size, key, 0, size).tolist()) == list(range(size))


@given(st.integers(1, 2**40), SEEDS, st.data())
def test_a_compiled_bijection_is_the_one_torch_finds(size, key, data):
    start = data.draw(st.integers(0, size))
    stop = min(size, start + data.draw(st.integers(0, 2000)))
    compiled_order = bijection(size, key, start, stop)
    with pytest.MonkeyPatch.context() as patch:
        without_c(patch)
        assert torch.equal(compiled_order, bijection(size, key, start, stop))


@pytest.mark.parametrize("size", [1, 2, 3, 10**12, 2**61])
def test_a_bijection_may_have_any_size(size):
    numbers = bijection(size, 5, max(0, size - 600), size)
    assert len(numbers.unique()) == min(600, size)
    assert 0 <= int(numbers.min()) <= int(numbers.max()) < size


def p_value_of_permutations(order):
    """Test that all 24 orders of four numbers are equally frequent. Return the p-value."""
    names = {p: number for number, p in enumerate(permutations(range(4)))}
    drawn = [names[tuple(order(4, key, 0, 4).tolist())] for key in range(24_000)]
    return chisquare(np.bincount(drawn, minlength=24)).pvalue


def p_value_of_places(order):
    """Test that every number is equally often at every place. Return the p-value.

    The size is not a square.
    """
    places = torch.stack([order(23, key, 0, 23) for key in range(6000)])
    counts = torch.stack([torch.bincount(places[:, place], minlength=23) for place in range(23)])
    return chisquare(counts.flatten().numpy(), ddof=2 * 23 - 2).pvalue


def p_value_of_neighbors(order):
    """Test that the distances of neighbors are triangular in large orders. Return the p-value."""
    numbers = torch.cat([order(10**6, key, 500, 1500).diff().abs() for key in range(200)])
    return kstest(numbers.numpy() / 1e6, lambda x: 1 - (1 - x) ** 2).pvalue


def p_value_of_fixed_points(order):
    """Test that the number of fixed points is Poisson with mean 1. Return the p-value."""
    places = torch.arange(2000)
    counts = [int((order(2000, key, 0, 2000) == places).sum()) for key in range(3000)]
    observed = np.bincount(np.minimum(counts, 5), minlength=6)
    expected = np.array([1, 1, 1 / 2, 1 / 6, 1 / 24]) / np.e
    return chisquare(observed, 3000 * np.append(expected, 1 - expected.sum())).pvalue


def p_value_of_spread(order):
    """Test that the first numbers of large orders are uniform. Return the p-value."""
    numbers = torch.cat([order(10**8 + 7, key, 0, 500) for key in range(200)])
    return kstest(numbers.numpy() / (1e8 + 7), "uniform").pvalue


def p_value_of_keys(order):
    """Test that neighboring keys give independent orders. Return the p-value.

    The same place must hold unrelated numbers.
    """
    differences = [
        (order(10**6, key, 0, 500) - order(10**6, key + 1, 0, 500)).abs() for key in range(400)
    ]
    return kstest(torch.cat(differences).numpy() / 1e6, lambda x: 1 - (1 - x) ** 2).pvalue


ON_SMALL_ORDERS = [p_value_of_permutations, p_value_of_places, p_value_of_fixed_points]
ON_LARGE_ORDERS = [p_value_of_neighbors, p_value_of_spread, p_value_of_keys]


@pytest.mark.parametrize("p_value", ON_SMALL_ORDERS + ON_LARGE_ORDERS)
def test_a_bijection_is_random(p_value):
    assert p_value(bijection) > 1e-4


@pytest.mark.parametrize("p_value", ON_SMALL_ORDERS)
def test_so_is_fisher_yates(p_value):
    assert p_value(fisher_yates) > 1e-4


@pytest.mark.slow
def test_with_fewer_rounds_a_bijection_is_not_random(monkeypatch):
    without_c(monkeypatch)
    monkeypatch.setattr(module, "NUM_ROUNDS", 6)
    assert p_value_of_permutations(bijection) < 1e-4


# ----------------------------------------------------------------------------------------- blocks


@given(st.integers(0, 300), SEEDS, EPOCHS, st.integers(1, 40), st.integers(1, 9))
def test_an_order_in_blocks_holds_every_record_once(num_records, seed, epoch, block, window):
    order = in_blocks(num_records, seed, epoch, block, window)
    assert sorted(order.tolist()) == list(range(num_records))


@given(st.integers(1, 300), SEEDS, st.integers(1, 40), st.integers(1, 9), st.data())
def test_a_part_of_an_order_in_blocks_is_that_of_the_whole(num_records, seed, block, window, data):
    start = data.draw(st.integers(0, num_records))
    stop = data.draw(st.integers(start, num_records))
    part = shuffled_in_blocks(num_records, seed, 3, block, window, start, stop)
    assert torch.equal(part, in_blocks(num_records, seed, 3, block, window)[start:stop])


@given(st.integers(1, 300), SEEDS, st.integers(1, 40), st.integers(1, 9))
def test_each_window_holds_few_blocks(num_records, seed, block, window):
    order = in_blocks(num_records, seed, 1, block, window)
    for part in order.split(block * window):
        # one more where the short last block shifts the others
        assert len((part // block).unique()) <= window + 1


@given(st.integers(1, 300), SEEDS, st.integers(1, 9))
def test_blocks_of_one_window_over_all_are_shuffled_whole(num_records, seed, block):
    order = in_blocks(num_records, seed, 1, block, -(-num_records // block))
    assert sorted(order.tolist()) == list(range(num_records))


def test_a_block_order_is_another_in_every_epoch_and_mixes_inside_its_window():
    orders = [in_blocks(400, 0, epoch, 10, 4).tolist() for epoch in range(5)]
    assert len({tuple(order) for order in orders}) == 5
    assert sum(later == earlier + 1 for earlier, later in pairwise(orders[0])) < 40


def test_the_block_order_of_one_seed_never_changes():
    order = in_blocks(12, seed=0, epoch=0, block=3, window=2)
    assert order.tolist() == [10, 11, 2, 0, 1, 9, 6, 7, 3, 8, 5, 4]
