from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import ConfigError
from framework.order.batches import Order
from framework.order.buckets import BucketOrder

LASTS = ("short", "drop", "wrap")
LENGTHS = st.lists(st.integers(0, 50), min_size=1, max_size=60)
CASES = st.fixed_dictionaries(
    {
        "lengths": LENGTHS,
        "batch_size": st.integers(1, 12),
        "max_values": st.none() | st.integers(50, 300),
        "width": st.sampled_from([0.0, 0.08, 0.5]),
        "limit": st.none() | st.integers(1, 70),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 2**40),
    }
)


class Lengths:
    """The facts of records with these lengths."""

    def __init__(self, lengths):
        self.all = torch.as_tensor(lengths)

    def lengths(self, name):
        return self.all


def make(case, last="short", **options):
    """Return the bucketed order of a case, and the lengths of its records."""
    case = dict(case)
    lengths = torch.tensor(case.pop("lengths"))
    max_values, width = case.pop("max_values"), case.pop("width")
    order = Order(len(lengths), last=last, **case, **options)
    return BucketOrder(None, max_values, width).order(order, Lengths(lengths), True), lengths


def batches(order, epoch=0, start=0):
    """Return the records of each step over all ranks."""
    steps = []
    ranks = [replace(order, rank=rank).shares(epoch, start) for rank in range(order.world_size)]
    for shares in zip(*ranks, strict=True):
        real = [share.indices.tolist() for share in shares if share.weight]
        steps.append([index for part in real for index in part])
    return steps


def spread_lengths(count=20_000, sigma=0.28):
    """Return lengths like those of speech: padding is 40 % of plain batches."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(count, generator=generator) * sigma + 6).exp().long()


def padding(lengths, steps):
    real = sum(int(lengths[step].sum()) for step in steps)
    return 1 - real / sum(len(step) * int(lengths[step].max()) for step in steps)


@given(CASES, st.integers(0, 9))
def test_every_record_comes_exactly_once_per_epoch(case, epoch):
    order, _ = make(case)
    seen = [index for step in batches(order, epoch) for index in step]
    assert sorted(seen) == order.used().tolist()
    assert len(seen) == order.num_in_batches == order.identity["records"]


@given(CASES, st.sampled_from(LASTS), st.integers(0, 9))
def test_the_number_of_batches_does_not_depend_on_the_epoch(case, last, epoch):
    order, _ = make(case, last)
    steps = batches(order, epoch)
    assert len(steps) == order.num_steps == order.identity["steps"]
    assert sum(map(len, steps)) == order.num_in_batches


@given(CASES, st.sampled_from(LASTS), st.integers(0, 9))
def test_no_batch_exceeds_the_number_of_records_or_of_values(case, last, epoch):
    order, lengths = make(case, last)
    for step in batches(order, epoch):
        assert 0 < len(step) <= case["batch_size"]
        if case["max_values"] is not None:
            assert len(step) * int(lengths[step].max()) <= case["max_values"]


@given(CASES, st.sampled_from(LASTS), st.integers(0, 9), st.sampled_from([1, 2, 3]))
def test_a_batch_does_not_depend_on_the_ranks(case, last, epoch, world_size):
    order, _ = make(case, last)
    among = replace(order, world_size=world_size)
    assert [sorted(step) for step in batches(among, epoch)] == [
        sorted(step) for step in batches(order, epoch)
    ]


@given(CASES, st.sampled_from(LASTS), st.integers(0, 9), st.integers(0, 30))
def test_resuming_is_a_jump_to_the_tail_of_the_epoch(case, last, epoch, start):
    order, _ = make(case, last)
    assert batches(order, epoch, start) == batches(order, epoch)[start:]


@given(CASES, st.integers(0, 9))
def test_the_same_seed_and_epoch_give_the_same_batches(case, epoch):
    first, second = make(case)[0], make(case)[0]
    batches(first, epoch + 1)
    assert batches(first, epoch) == batches(second, epoch)


@given(CASES, st.integers(0, 9))
def test_at_most_one_batch_is_not_full_and_dropping_leaves_it_out(case, epoch):
    order, _ = make(case)
    dropped, _ = make(case, "drop")
    assert order.num_steps - dropped.num_steps in (0, 1)
    assert order.num_in_batches - dropped.num_in_batches < case["batch_size"]
    if not case["shuffle"]:
        assert batches(dropped, epoch) == batches(order, epoch)[: dropped.num_steps]


@given(CASES, st.integers(0, 9))
def test_wrapping_fills_the_short_batch_with_records_of_its_bucket(case, epoch):
    short, wrapped = batches(make(case)[0], epoch), batches(make(case, "wrap")[0], epoch)
    for some, more in zip(short, wrapped, strict=True):
        assert more[: len(some)] == some
        assert set(more[len(some) :]) <= set(make(case)[0].used().tolist())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_epochs_and_seeds_shuffle_records_and_batches(seed):
    lengths = Lengths(spread_lengths(2000))
    order = BucketOrder(None, None, 0.08).order(Order(2000, 8, seed, True), lengths, True)
    other = replace(order, seed=seed + 1)
    first, second, third = batches(order, 0), batches(order, 1), batches(other, 0)
    for steps in (second, third):
        assert steps != first
        assert {tuple(sorted(step)) for step in steps} != {tuple(sorted(step)) for step in first}
    longest = [int(lengths.all[step].max()) for step in first]
    assert longest != sorted(longest, reverse=True)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("max_values", [None, 32_000])
def test_speech_like_lengths_have_little_padding(seed, max_values):
    lengths = spread_lengths()
    plain = Order(len(lengths), 32, seed, shuffle=True)
    order = BucketOrder(None, max_values, 0.08).order(plain, Lengths(lengths), True)
    assert padding(lengths, batches(plain)) > 0.35
    assert padding(lengths, batches(order)) < 0.05


def test_a_budget_takes_more_short_records_than_long_ones():
    lengths = spread_lengths()
    order = Order(len(lengths), 1000, shuffle=False)
    steps = batches(BucketOrder(None, 32_000, 0.08).order(order, Lengths(lengths), True))
    assert len(steps[0]) * 2 < len(steps[-2])
    used = [len(step) * int(lengths[step].max()) / 32_000 for step in steps[:-1]]
    assert sum(used) / len(used) > 0.9


def test_a_record_beyond_the_budget_is_named():
    with pytest.raises(ConfigError, match=r"C201.*max_values = 9: record 2 alone has 12.*=12 or"):
        BucketOrder(None, 9, 0.1).order(Order(4, 2), Lengths([3, 9, 12, 1]), True)


def test_other_lengths_are_another_order():
    def identity(lengths):
        return BucketOrder(None, None, 0.1).order(Order(3, 2), Lengths(lengths), True).identity

    assert identity([5, 9, 1]) != identity([9, 5, 1])
    assert identity([5, 9, 1]) == identity([5, 9, 1])


def test_virtual_ranks_share_each_batch():
    lengths = Lengths(spread_lengths(100))
    order = BucketOrder(None, None, 0.1).order(Order(100, 8, shuffle=True), lengths, True)
    whole = batches(order)
    cut = list(replace(order, virtual_ranks=2).shares(0))
    parts = [share.indices.tolist() for share in cut]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    assert [sorted(a + b) for a, b in pairs] == [sorted(step) for step in whole]
