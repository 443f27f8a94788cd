from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import ConfigError
from framework.order.batches import Order
from framework.order.sampling import sampling, with_weights
from tests.order.facts import batches, counts_of

WEIGHTS = st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.0, 7.5]), min_size=1, max_size=50)
ANY = WEIGHTS.filter(any)
SEEDS = st.sampled_from([0, 1, 2])


def make(weights, seed=0, num_places=None, **options):
    order = Order(len(weights), options.pop("batch_size", 4), seed, True, **options)
    return with_weights(
        order, np.array(weights)[order.used().numpy()], "weights", num_places or order.num_used
    )


@given(ANY, SEEDS, st.integers(0, 9), st.none() | st.integers(1, 200))
def test_each_record_comes_its_expected_number_of_times_rounded_down_or_up(
    weights, seed, epoch, num_places
):
    order = make(weights, seed, num_places)
    counts = counts_of(order, epoch)
    expected = np.array(weights) / sum(weights) * order.num_places
    assert counts.sum() == order.num_places == (num_places or len(weights))
    assert (counts >= np.floor(expected - 1e-9)).all()
    assert (counts <= np.ceil(expected + 1e-9)).all()


@given(ANY, SEEDS, st.integers(0, 9), st.sampled_from([1, 2, 3]))
def test_a_batch_does_not_depend_on_the_ranks(weights, seed, epoch, world_size):
    order = make(weights, seed)
    among = batches(replace(order, world_size=world_size), epoch)
    assert [sorted(step) for step in among] == [sorted(step) for step in batches(order, epoch)]


@given(ANY, SEEDS, st.integers(0, 9), st.sampled_from([1, 3]))
def test_each_time_that_a_record_comes_has_a_key_of_its_own(weights, seed, epoch, world_size):
    order = make(weights, seed)
    ranks = [replace(order, world_size=world_size, rank=rank) for rank in range(world_size)]
    shares = [share for rank in ranks for share in rank.shares(epoch) if share.weight]
    keys = torch.cat([share.keys for share in shares])
    indices = torch.cat([share.indices for share in shares])
    assert indices.equal(keys % order.num_records)
    times = counts_of(order, epoch)
    expected = [
        index + len(weights) * time for index in range(len(weights)) for time in range(times[index])
    ]
    assert sorted(keys.tolist()) == sorted(expected)


def test_records_that_fill_the_last_batch_have_keys_of_their_own():
    order = make([4.0, 1.0, 1.0], num_places=6, batch_size=4, last="wrap")
    keys = torch.cat([share.keys for share in order.shares(0)])
    assert len(keys) == len(keys.unique()) == 8
    assert (keys[6:] % 3).equal(keys[:2] % 3)


@given(ANY, SEEDS, st.integers(0, 9), st.integers(0, 20))
def test_resuming_is_a_jump_to_the_tail_of_the_epoch(weights, seed, epoch, start):
    order = make(weights, seed)
    assert batches(order, epoch, start) == batches(order, epoch)[start:]


@given(ANY, SEEDS, st.sampled_from(["drop", "wrap"]))
def test_batches_are_whole_if_the_last_may_not_be_short(weights, seed, last):
    order = make(weights, seed, last=last)
    sizes = [len(step) for step in batches(order)]
    assert sizes == [4] * order.num_steps
    assert order.num_in_batches == 4 * order.num_steps


@pytest.mark.parametrize("unit", [4e307, 5e-324])
def test_huge_and_tiny_weights_are_shares_too(unit):
    weights = [1.0, 2.0, 4.0, 1.0]
    huge = make([weight * unit for weight in weights], num_places=80)
    assert counts_of(huge, 0).tolist() == [10, 20, 40, 10]


def test_over_epochs_each_record_comes_in_proportion_to_its_weight():
    weights = np.array([0.2, 0.5, 1, 1, 1, 0.8, 3.5])
    order = make(list(weights))
    mean = sum(counts_of(order, epoch) for epoch in range(2000)) / 2000
    assert mean == pytest.approx(7 * weights / weights.sum(), abs=0.05)


def test_equal_weights_are_drawn_in_changing_company():
    order = make([1.0] * 40 + [3.0] * 40, num_places=40)
    drawn = {tuple(np.flatnonzero(counts_of(order, epoch))) for epoch in range(20)}
    assert len(drawn) == 20


def test_a_part_of_a_large_group_is_computed_alone():
    groups = torch.zeros(300_000, dtype=torch.int64)
    samples = sampling(groups, torch.ones(1, dtype=torch.float64), 300_000)
    slots = torch.arange(300_000)
    whole = samples.drawn(slots, 3, 1)
    assert whole.places.sort().values.equal(slots)
    assert not whole.times.any()
    assert samples.drawn(slots[7:50], 3, 1).places.equal(whole.places[7:50])


def test_a_limit_draws_from_the_records_in_use():
    order = make([1.0, 0.0, 5.0, 1.0, 1.0, 1.0], limit=3)
    assert set(np.flatnonzero(counts_of(order, 0))) <= set(order.used().tolist())
    assert order.num_places == 3


def test_other_weights_are_another_order():
    assert make([1.0, 2.0]).identity != make([2.0, 1.0]).identity
    assert make([1.0, 2.0]).identity == make([1.0, 2.0]).identity


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(ConfigError, match=r"C202.*weights: all weights are 0"):
        make([0.0, 0.0])
