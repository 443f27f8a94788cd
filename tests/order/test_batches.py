from dataclasses import replace
from itertools import zip_longest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.order.batches import Order, spread
from framework.order.draws import draws
from tests.order.facts import batches, steps_of

ORDERS = st.builds(
    Order,
    num_records=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    accumulate=st.integers(1, 4),
    world_size=st.integers(1, 5),
    limit=st.none() | st.integers(1, 70),
    shuffle=st.booleans(),
    block=st.none() | st.integers(1, 20),
    window=st.integers(1, 4),
    seed=st.integers(0, 2**40),
)
EPOCHS = st.integers(0, 9)


def alone(order, **options):
    """Return the order of a single rank without accumulation."""
    return replace(order, world_size=1, accumulate=1, **options)


def shares_of_ranks(order, epoch=0, start=0):
    """Return the shares of every rank as (records, weight, last)."""
    ranks = [replace(order, rank=rank) for rank in range(order.world_size)]
    return [
        [(share.indices.tolist(), share.weight, share.last) for share in rank.shares(epoch, start)]
        for rank in ranks
    ]


@given(ORDERS, EPOCHS, st.integers(0, 9))
def test_shares_go_on_over_epochs_for_so_many_steps(order, epoch, steps):
    expected = [
        (number, share.indices.tolist(), *share[1:3])
        for number in range(epoch, epoch + steps)
        for share in order.shares(number)
    ]
    going = [(n, own.indices.tolist(), *own[1:3]) for n, own in order.shares_on(epoch, 0, steps)]
    assert going == expected[: len(going)]
    assert sum(last for *_, last in going) == steps


@given(ORDERS, EPOCHS)
def test_every_record_comes_once_per_epoch_in_batches_that_ranks_do_not_change(order, epoch):
    steps = batches(order, epoch)
    seen = [index for step in steps for index in step]
    assert sorted(seen) == spread(order.num_records, order.num_used).tolist()
    assert [sorted(step) for step in steps] == [sorted(s) for s in batches(alone(order), epoch)]


@given(ORDERS, st.integers(1, 64), EPOCHS)
def test_on_any_number_of_ranks_dealt_out_in_turns_is_the_order_on_one(order, world_size, epoch):
    among = replace(order, world_size=world_size, accumulate=1)
    hands = [
        [records if weight else [] for records, weight, _ in shares]
        for shares in shares_of_ranks(among, epoch)
    ]
    turns = [zip_longest(*step) for step in zip(*hands, strict=True)]
    dealt = [[index for turn in step for index in turn if index is not None] for step in turns]
    assert dealt == batches(alone(order), epoch)


@given(ORDERS, st.sampled_from([(4, 1), (4, 2), (4, 4), (6, 3), (12, 3)]), EPOCHS)
def test_virtual_ranks_get_what_as_many_ranks_would(order, counts, epoch):
    virtual, world_size = counts
    real = shares_of_ranks(replace(order, accumulate=1, world_size=virtual), epoch)
    among = replace(order, accumulate=1, world_size=world_size, virtual_ranks=virtual)
    ranks = shares_of_ranks(among, epoch)
    each = virtual // world_size
    for number, shares in enumerate(real):
        own = ranks[number // each][number % each :: each]
        assert [share[:2] for share in own] == [share[:2] for share in shares]
    lasts = [number == each - 1 for number in range(each)]
    assert [last for *_, last in ranks[0]] == lasts * order.num_steps


@given(ORDERS)
def test_weighted_means_averaged_over_the_ranks_are_the_mean_of_the_batch(order):
    values = draws(torch.arange(order.num_records), 1, 0, 1).double().squeeze(1)
    for step in steps_of(order):
        assert sum(share.weight for share in step) == pytest.approx(order.world_size)
        weighted = sum(share.weight * values[share.indices].mean() for share in step)
        expected = values[torch.cat([share.indices for share in step])].mean()
        assert float(weighted / order.world_size) == pytest.approx(float(expected))


@given(ORDERS)
def test_ranks_step_together_in_the_asked_number_of_passes_and_no_share_is_empty(order):
    ranks = shares_of_ranks(order)
    lasts = [[last for *_, last in shares] for shares in ranks]
    assert all(last == lasts[0] for last in lasts)
    assert sum(lasts[0]) == order.num_steps
    assert len(lasts[0]) <= order.num_steps * order.accumulate
    assert all(records for shares in ranks for records, *_ in shares)


@given(st.integers(1, 200), st.data())
def test_spread_takes_first_and_last_and_even_steps_between(num_records, data):
    count = data.draw(st.integers(min(2, num_records), num_records))
    indices = spread(num_records, count)
    steps = indices.diff()
    assert (len(indices), int(indices[0]), int(indices[-1])) == (count, 0, num_records - 1)
    assert count == 1 or (int(steps.min()) >= 1 and int(steps.max() - steps.min()) <= 1)


@given(ORDERS, st.sampled_from(["short", "drop", "wrap"]), EPOCHS, st.sampled_from([None, 3, 10]))
def test_the_smallest_pass_is_known_without_an_epoch(order, last, epoch, virtual_ranks):
    order = replace(order, last=last)
    if virtual_ranks is not None:
        order = replace(order, accumulate=1, world_size=1, virtual_ranks=virtual_ranks)
    sizes = order.smallest_batches
    known = [order.smallest_pass(size) for size in sizes if size]
    seen = [len(records) for shares in shares_of_ranks(order, epoch) for records, *_ in shares]
    assert min(known, default=0) == min(seen, default=0)
    assert (sizes[1] > 0) == (last == "short" and order.num_places % order.batch_size > 0)


@given(ORDERS, EPOCHS, st.sampled_from(["drop", "wrap"]))
def test_every_batch_is_whole_unless_the_last_may_be_short(order, epoch, last):
    order = replace(order, last=last)
    sizes = [sum(len(share.indices) for share in step) for step in steps_of(order, epoch)]
    assert sizes == [order.batch_size] * order.num_steps
    assert order.num_in_batches == order.num_steps * order.batch_size == order.identity["records"]


@given(ORDERS, EPOCHS)
def test_dropping_leaves_out_and_wrapping_fills_with_the_epoch_s_first_records(order, epoch):
    short, dropped, wrapped = (
        batches(alone(order, last=last), epoch) for last in ("short", "drop", "wrap")
    )
    assert dropped == [batch for batch in short if len(batch) == order.batch_size]
    once = [index for batch in short for index in batch]
    filled = (once * order.batch_size * 2)[: len(short) * order.batch_size]
    assert [index for batch in wrapped for index in batch] == filled
    assert len(wrapped) == len(short)
