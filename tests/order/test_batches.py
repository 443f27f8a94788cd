from dataclasses import replace
from itertools import zip_longest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.order.batches import Order, spread
from framework.order.draws import draws

SIZES = {
    "num_records": st.integers(1, 60),
    "batch_size": st.integers(1, 20),
    "accumulate": st.integers(1, 4),
    "world_size": st.integers(1, 5),
    "limit": st.none() | st.integers(1, 70),
    "shuffle": st.booleans(),
    "block": st.none() | st.integers(1, 20),
    "window": st.integers(1, 4),
    "seed": st.integers(0, 2**40),
}
ORDERS = st.builds(Order, **SIZES)


def _ranks(order, epoch=0, start=0):
    """Return the shares of every rank."""
    return [
        list(replace(order, rank=rank).shares(epoch, start)) for rank in range(order.world_size)
    ]


def _steps(order, epoch=0):
    """Return the real shares of all ranks for each step."""
    steps = [[] for _ in range(order.num_steps)]
    for shares in _ranks(order, epoch):
        step = 0
        for share in shares:
            if share.weight:
                steps[step].append(share)
            step += share.last
    return steps


def _used(order):
    return spread(order.num_records, order.num_used).tolist()


def _whole_batches(order, epoch, last):
    """Return the batches of a single rank without accumulation."""
    shares = replace(order, world_size=1, accumulate=1, last=last).shares(epoch)
    return [share.indices.tolist() for share in shares]


def _lists(shares):
    return [(share.indices.tolist(), share.weight, share.last) for share in shares]


@given(ORDERS, st.integers(0, 9))
def test_every_record_comes_exactly_once_per_epoch(order, epoch):
    seen = [
        index for step in _steps(order, epoch) for share in step for index in share.indices.tolist()
    ]
    assert sorted(seen) == _used(order)
    assert len(seen) == order.num_used


@given(ORDERS, st.integers(0, 9))
def test_a_global_batch_does_not_depend_on_ranks_or_accumulation(order, epoch):
    alone = replace(order, world_size=1, accumulate=1)
    expected = [sorted(share.indices.tolist()) for share in alone.shares(epoch)]
    actual = [
        sorted(index for share in step for index in share.indices.tolist())
        for step in _steps(order, epoch)
    ]
    assert actual == expected


@given(ORDERS)
def test_a_global_batch_is_a_slice_of_the_permutation(order):
    alone = replace(order, world_size=1, accumulate=1, shuffle=True)
    whole = alone.records(4, 0, order.num_used)
    for step, share in enumerate(alone.shares(4)):
        assert (
            share.indices.tolist()
            == whole[step * order.batch_size : (step + 1) * order.batch_size].tolist()
        )


@given(ORDERS, st.integers(1, 64), st.integers(0, 9))
def test_on_1_to_64_ranks_dealt_out_in_turns_is_the_order_on_one(order, world_size, epoch):
    alone, among = (
        replace(order, world_size=1, accumulate=1),
        replace(order, world_size=world_size, accumulate=1),
    )
    hands = [
        [share.indices.tolist() if share.weight else [] for share in shares]
        for shares in _ranks(among, epoch)
    ]
    turns = [zip_longest(*step) for step in zip(*hands, strict=True)]
    dealt = [[index for turn in step for index in turn if index is not None] for step in turns]
    assert dealt == [share.indices.tolist() for share in alone.shares(epoch)]


@given(
    ORDERS, st.sampled_from([(4, 1), (4, 2), (4, 4), (6, 3), (12, 3), (5, 5)]), st.integers(0, 9)
)
def test_virtual_ranks_get_what_as_many_ranks_would(order, counts, epoch):
    virtual, world_size = counts
    real = _ranks(replace(order, accumulate=1, world_size=virtual), epoch)
    ranks = _ranks(
        replace(order, accumulate=1, world_size=world_size, virtual_ranks=virtual), epoch
    )
    each = virtual // world_size
    for number, shares in enumerate(real):
        own = ranks[number // each][number % each :: each]
        assert [row[:2] for row in _lists(own)] == [row[:2] for row in _lists(shares)]
    assert [share.last for share in ranks[0]] == [
        number == each - 1 for number in range(each)
    ] * order.num_steps


@given(ORDERS)
def test_weights_sum_to_the_number_of_ranks_in_every_step(order):
    for step in _steps(order):
        assert sum(share.weight for share in step) == pytest.approx(order.world_size)


@given(ORDERS)
def test_weighted_means_averaged_over_the_ranks_are_the_mean_of_the_global_batch(order):
    values = draws(torch.arange(order.num_records), 1, 0, 1).double().squeeze(1)
    for step in _steps(order):
        indices = torch.cat([share.indices for share in step])
        weighted = (
            sum(share.weight * values[share.indices].mean() for share in step) / order.world_size
        )
        assert float(weighted) == pytest.approx(float(values[indices].mean()))


@given(ORDERS)
def test_every_rank_gets_equally_many_shares_and_steps_together(order):
    lasts = [[share.last for share in shares] for shares in _ranks(order)]
    assert all(last == lasts[0] for last in lasts)
    assert sum(lasts[0]) == order.num_steps


@given(ORDERS)
def test_a_step_has_at_most_the_asked_number_of_passes_and_no_share_is_empty(order):
    for shares in _ranks(order):
        assert all(len(share.indices) > 0 for share in shares)
        assert len(shares) <= order.num_steps * order.accumulate


@given(ORDERS, st.integers(0, 9), st.data())
def test_resuming_is_a_jump_to_the_tail_of_the_epoch(order, epoch, data):
    start = data.draw(st.integers(0, order.num_steps))
    for whole, tail in zip(_ranks(order, epoch), _ranks(order, epoch, start), strict=True):
        passed = [number for number, share in enumerate(whole) if share.last][:start]
        assert _lists(tail) == _lists(whole[passed[-1] + 1 if passed else 0 :])


@given(ORDERS)
def test_without_shuffling_every_epoch_is_in_the_order_of_the_records(order):
    plain = replace(order, shuffle=False, world_size=1, accumulate=1)
    assert torch.cat([share.indices for share in plain.shares(3)]).tolist() == _used(order)


@given(st.integers(1, 200), st.data())
def test_spread_takes_first_and_last_and_even_steps_between(num_records, data):
    count = data.draw(st.integers(min(2, num_records), num_records))
    indices = spread(num_records, count)
    steps = indices.diff()
    assert (len(indices), int(indices[0]), int(indices[-1])) == (count, 0, num_records - 1)
    assert count == 1 or (int(steps.min()) >= 1 and int(steps.max() - steps.min()) <= 1)


def test_one_of_many_records_is_the_first():
    assert spread(10, 1).tolist() == [0]


def test_a_limit_above_the_number_of_records_takes_all():
    assert Order(5, 2, limit=9).num_used == 5
    assert _used(Order(5, 2, limit=9)) == [0, 1, 2, 3, 4]


def test_a_short_last_batch_is_a_step_of_its_own():
    shares = list(Order(7, 3).shares(0))
    assert [len(share.indices) for share in shares] == [3, 3, 1]


def test_a_rank_without_records_gets_a_filler_of_weight_zero():
    shares = list(Order(5, 4, world_size=3, rank=2).shares(0))
    assert [(share.indices.tolist(), share.weight) for share in shares] == [([2], 0.75), ([4], 0.0)]


@pytest.mark.parametrize(
    "cut", [lambda rank: {"world_size": 4, "rank": rank}, lambda _: {"virtual_ranks": 4}]
)
def test_fillers_are_the_batch_s_records_in_turn(cut):
    shares = [list(Order(6, 4, **cut(rank)).shares(0)) for rank in range(4)]
    last = [own[1] for own in shares] if "rank" in cut(0) else shares[0][4:]
    assert [(share.indices.tolist(), share.weight) for share in last] == [
        ([4], 2.0),
        ([5], 2.0),
        ([4], 0.0),
        ([5], 0.0),
    ]


def test_blocks_and_window_are_part_of_the_orders_identity():
    plain, blocks = Order(9, 2).identity, Order(9, 2, block=3, window=2).identity
    assert blocks == {**plain, "block": 3, "window": 2}


# ---------------------------------------------------------------------------- an epoch's last batch


@given(ORDERS, st.integers(0, 9), st.sampled_from(["drop", "wrap"]))
def test_every_batch_is_whole_unless_the_last_may_be_short(order, epoch, last):
    order = replace(order, last=last)
    sizes = [sum(len(share.indices) for share in step) for step in _steps(order, epoch)]
    assert sizes == [order.batch_size] * order.num_steps
    assert order.num_in_batches == order.num_steps * order.batch_size == order.identity["records"]


@given(ORDERS, st.integers(0, 9))
def test_dropping_leaves_out_only_what_fills_no_batch(order, epoch):
    short = _whole_batches(order, epoch, "short")
    dropped = _whole_batches(order, epoch, "drop")
    assert dropped == [batch for batch in short if len(batch) == order.batch_size]


@given(ORDERS, st.integers(0, 9))
def test_wrapping_fills_with_the_epoch_s_first_records(order, epoch):
    short = _whole_batches(order, epoch, "short")
    wrapped = _whole_batches(order, epoch, "wrap")
    once = [index for batch in short for index in batch]
    assert [index for batch in wrapped for index in batch] == (once * order.batch_size * 2)[
        : order.num_steps * order.batch_size
    ]
    assert len(wrapped) == len(short)


@given(ORDERS, st.integers(0, 9), st.sampled_from(["drop", "wrap"]), st.integers(0, 5))
def test_any_step_of_whole_batches_is_reached_by_a_jump(order, epoch, last, start):
    order = replace(order, last=last)
    whole = [_lists([share]) for share in order.shares(epoch)]
    passes = [number for number, share in enumerate(order.shares(epoch)) if share.last]
    begin = 0
    if start > 0:
        begin = passes[start - 1] + 1 if start <= len(passes) else len(whole)
    assert [_lists([share]) for share in order.shares(epoch, start)] == whole[begin:]
