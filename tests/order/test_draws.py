"""Random numbers of records, and random orders: every record once, any part alone."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from framework.order import draws
from framework.order.draws import ON_HOST, bijection, permutation, record_seeds, shuffled

INDICES = st.lists(st.integers(0, 2**31), min_size=1, max_size=20)
SEEDS = st.integers(0, 2**40)


def test_the_draws_of_one_seed_never_change():
    expected = [[0.5366186499595642, 0.9035539627075195], [0.2646855115890503, 0.13924485445022583]]
    assert draws.draws(torch.tensor([0, 1]), seed=5, epoch=2, num_draws=2).tolist() == expected


@given(INDICES, SEEDS, st.integers(-1, 99), st.integers(1, 6))
def test_draws_and_seeds_belong_to_the_record_and_not_to_its_batch(indices, seed, epoch, num_draws):
    together = draws.draws(torch.tensor(indices), seed, epoch, num_draws)
    seeds = record_seeds(torch.tensor(indices), seed, epoch)
    assert (together.shape, together.dtype) == ((len(indices), num_draws), torch.float32)
    assert int(seeds.min()) >= 0
    for place, index in enumerate(indices):
        alone = torch.tensor([index])
        assert torch.equal(together[place], draws.draws(alone, seed, epoch, num_draws)[0])
        assert int(seeds[place]) == int(record_seeds(alone, seed, epoch))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9), SEEDS, st.integers(1, 31))
def test_compiled_draws_are_those_of_operators(records, seed, num_draws):
    indices = torch.tensor(records, dtype=torch.int64)
    by_operators = draws.keyed_draws(indices, draws.key_of(seed, 3, ON_HOST), num_draws)
    assert torch.equal(draws.draws(indices, seed, 3, num_draws, ON_HOST), by_operators)


@pytest.mark.parametrize("epoch", range(3))
def test_alternating_draws_are_those_of_epoch_0_and_their_mirror_images(epoch):
    indices = torch.arange(100)
    numbers = draws.DeviceDraws(7, 3, (0, 2))
    drawn = numbers.of(indices, *numbers.keys(epoch))
    first = draws.draws(indices, 7, 0, 3)
    if epoch % 2:
        first = 1 - 2**-24 - first
    assert torch.equal(drawn[:, 1], draws.draws(indices, 7, epoch, 3)[:, 1])
    assert torch.equal(drawn[:, [0, 2]], first[:, [0, 2]])
    assert drawn.min() >= 0
    assert drawn.max() < 1


LARGE = draws.MOST_SORTED + 1  # records from which a bijection makes the order
EPOCHS = st.integers(0, 1000)


def in_blocks(num_records, seed, epoch, block, window):
    return draws.shuffled_in_blocks(num_records, seed, epoch, block, window, 0, num_records)


def without_c(patch):
    patch.setattr(draws, "find", lambda name: None)
    draws._sorted_by_keys.cache_clear()


def test_the_orders_of_one_seed_never_change():
    assert permutation(12, seed=7, epoch=3).tolist() == [0, 7, 5, 10, 6, 2, 9, 11, 3, 4, 1, 8]
    large = [457883985473, 955002791148, 140108589338, 988345704002]
    assert shuffled(10**12, 0, 0, 7, 11).tolist() == large
    block_order = in_blocks(12, seed=0, epoch=0, block=3, window=2)
    assert block_order.tolist() == [10, 11, 2, 0, 1, 9, 6, 7, 3, 8, 5, 4]


@given(st.integers(1, 300) | st.just(LARGE), SEEDS, EPOCHS, st.data())
def test_a_part_of_an_order_is_that_of_the_whole(num_records, seed, epoch, data):
    start = data.draw(st.integers(0, num_records))
    stop = data.draw(st.integers(start, num_records))
    part = shuffled(num_records, seed, epoch, start, stop)
    assert torch.equal(part, permutation(num_records, seed, epoch)[start:stop])


@given(SEEDS, EPOCHS, st.integers(0, 3000))
def test_a_compiled_permutation_is_the_one_that_torch_makes(seed, epoch, num_records):
    compiled_order = permutation(num_records, seed, epoch)
    with pytest.MonkeyPatch.context() as patch:
        without_c(patch)
        assert torch.equal(compiled_order, permutation(num_records, seed, epoch))


@given(st.integers(1, 2**61), SEEDS, st.data())
def test_a_compiled_bijection_of_any_size_is_the_one_that_torch_makes(size, key, data):
    start = data.draw(st.integers(max(0, size - 2**40), size))
    stop = min(size, start + data.draw(st.integers(0, 2000)))
    compiled_order = bijection(size, key, start, stop)
    assert len(compiled_order.unique()) == stop - start
    assert bool(((compiled_order >= 0) & (compiled_order < size)).all())
    with pytest.MonkeyPatch.context() as patch:
        without_c(patch)
        assert torch.equal(compiled_order, bijection(size, key, start, stop))


def p_value_of_permutations():
    """Test that all 24 orders of four numbers are equally frequent. Return the p-value."""
    names = {p: number for number, p in enumerate(permutations(range(4)))}
    drawn = [names[tuple(bijection(4, key, 0, 4).tolist())] for key in range(6_000)]
    return chisquare(np.bincount(drawn, minlength=24)).pvalue


def p_value_of_neighbors():
    """Test that the distances of neighbors are triangular in large orders."""
    parts = [bijection(10**6, key, 500, 1500).diff().abs() for key in range(200)]
    return kstest(torch.cat(parts).numpy() / 1e6, lambda x: 1 - (1 - x) ** 2).pvalue


@pytest.mark.parametrize(
    "p_value",
    [p_value_of_permutations, p_value_of_neighbors],
    ids=lambda function: function.__name__.removeprefix("p_value_of_"),
)
def test_a_bijection_is_random(p_value):
    assert p_value() > 1e-4


@given(st.integers(0, 300), SEEDS, EPOCHS, st.integers(1, 40), st.integers(1, 9), st.data())
def test_an_order_in_blocks_holds_every_record_once(num_records, seed, epoch, block, window, data):
    order = in_blocks(num_records, seed, epoch, block, window)
    assert sorted(order.tolist()) == list(range(num_records))
    for part in order.split(block * window):
        # one more where the short last block shifts the others
        assert len((part // block).unique()) <= window + 1
    start = data.draw(st.integers(0, num_records))
    stop = data.draw(st.integers(start, num_records))
    part = draws.shuffled_in_blocks(num_records, seed, epoch, block, window, start, stop)
    assert torch.equal(part, order[start:stop])
