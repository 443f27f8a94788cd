"""Batches of records with similar lengths."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Field
from framework.data.hdf5 import hdf5_source
from framework.errors import ConfigError
from framework.order.batches import Order
from framework.order.buckets import BucketOrder
from tests.conftest import make_context, write_store
from tests.order.facts import Facts, batches

LASTS = st.sampled_from(["short", "drop", "wrap"])
EPOCHS = st.integers(0, 9)
CASES = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(0, 50), min_size=1, max_size=60),
        "batch_size": st.integers(1, 12),
        "max_values": st.none() | st.integers(50, 300),
        "width": st.sampled_from([0.0, 0.08, 0.5]),
        "limit": st.none() | st.integers(1, 70),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 2**40),
    }
)


def make(lengths, batch_size=8, max_values=None, width=0.08, **options):
    """Return the bucketed order of records with these lengths."""
    order = Order(len(lengths), batch_size, **options)
    return BucketOrder(None, max_values, width).order(order, Facts(lengths, lengths), True)


@given(CASES, LASTS, EPOCHS)
def test_batches_keep_their_limits_and_their_number_in_every_epoch(case, last, epoch):
    order, lengths = make(**case, last=last), np.array(case["lengths"])
    steps = batches(order, epoch)
    assert len(steps) == order.num_steps == order.identity["steps"]
    assert sum(map(len, steps)) == order.num_in_batches == order.identity["records"]
    assert min(filter(None, order.smallest_batches), default=0) == min(map(len, steps), default=0)
    if last == "short":
        assert sorted(index for step in steps for index in step) == order.used().tolist()
    for step in steps:
        assert 0 < len(step) <= case["batch_size"]
        if case["max_values"] is not None:
            assert len(step) * int(lengths[step].max()) <= case["max_values"]


@given(CASES, LASTS, EPOCHS, st.sampled_from([2, 3]), st.integers(0, 30))
def test_a_batch_depends_on_neither_ranks_nor_start_nor_history(case, last, epoch, ranks, start):
    order = make(**case, last=last)
    steps = batches(order, epoch)
    among = batches(replace(order, world_size=ranks), epoch)
    assert [sorted(step) for step in among] == [sorted(step) for step in steps]
    if start < order.num_steps:
        assert batches(order, epoch, start) == steps[start:]
    again = make(**case, last=last)
    batches(again, epoch + 1)
    assert batches(again, epoch) == steps


@given(CASES, EPOCHS)
def test_at_most_one_batch_is_short_and_it_is_dropped_or_filled(case, epoch):
    short, dropped, wrapped = (make(**case, last=last) for last in ("short", "drop", "wrap"))
    assert short.num_steps - dropped.num_steps in (0, 1)
    assert short.num_in_batches - dropped.num_in_batches < case["batch_size"]
    steps = batches(short, epoch)
    if not case["shuffle"]:
        assert batches(dropped, epoch) == steps[: dropped.num_steps]
    for some, more in zip(steps, batches(wrapped, epoch), strict=True):
        assert more[: len(some)] == some
        assert set(more[len(some) :]) <= set(short.used().tolist())


def test_a_record_beyond_the_budget_is_refused_with_its_name():
    with pytest.raises(ConfigError, match=r"C201.*max_values = 9: record 2 alone has 12.*=12 or"):
        make([3, 9, 12, 1], max_values=9)


def test_a_source_in_buckets_has_little_padding_and_says_so():
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(4, 0.28, 400).astype(int)
    waves = {"wave": [np.ones(length, np.float32) for length in lengths]}
    path = write_store("x.h5", waves, {"wave": Field("float32", (None,))})
    shares = []
    for choice in (None, BucketOrder("wave", None, 0.08)):
        context = make_context(batch_size=16, order_choice=choice)
        with closing(hdf5_source(path, context=context)) as source:
            batches_of_epoch = [micro.batch for micro in source.batches(0)]
            padding, whole = source.content()["padding"]
            assert source.content()["padding"] == (0.0, 0.0)
        assert whole == sum(batch["wave"].numel() for batch in batches_of_epoch)
        assert whole - padding == lengths.sum()
        shares.append(padding / whole)
    assert shares[1] < 0.08 < 0.3 < shares[0]
