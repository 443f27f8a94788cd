"""``order._target_``: batches of a sampler of the user's own."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from framework import errors
from framework.config.build import build
from framework.config.targets import parameters_of
from framework.order.batches import Order
from framework.order.sampler import SamplerOrder
from tests.order import facts, samplers

LABELS = np.arange(30) % 5
SIZES = {"Pairs": 6}
KINDS = ("Pairs", "Remembered", "Global")


def sampled(kind, labels=LABELS, gather=None, arguments=None, **options) -> Order:
    """Return an order whose batches one of ``samplers`` draws."""
    target = f"tests.order.samplers.{kind}"
    block = {"_target_": target, **(arguments or {})}
    takes = [name for name in parameters_of(target) if name not in block]
    make = partial(build, "order", block, ("tests.",))
    choice = SamplerOrder(make, takes, target, gather or (lambda own: [own]))
    given = {"batch_size": SIZES.get(kind, 4), "seed": 3, "shuffle": True, **options}
    return choice.order(Order(len(labels), **given), facts.Facts(labels), training=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampler_gives_what_a_plain_loop_gets_and_draws_from_no_other(kind):
    before = random.getstate(), torch.get_rng_state()
    order = sampled(kind)
    assert (order.num_steps, order.sampler.is_single) == {
        "Pairs": (5, False),
        "Remembered": (8, False),
        "Global": (8, True),
    }[kind]
    own = [facts.batches(order, epoch) for epoch in range(2)]
    assert own[0] != own[1]
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    if kind == "Pairs":
        plain = samplers.Pairs(LABELS, 3)
        expected = [*plain]
        plain.set_epoch(1)
        assert own == [expected, [*plain]]
    elif kind == "Remembered":
        plain = iter(samplers.Remembered(30, 4, 3))
        assert own == [[next(plain).tolist() for _ in range(8)] for _ in range(2)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [{"world_size": 2}, {"accumulate": 3}, {"world_size": 5, "accumulate": 2}],
    ids=["ranks", "passes", "both"],
)
def test_ranks_and_passes_share_the_same_batches(kind, options):
    alone = [sorted(own) for own in facts.batches(sampled(kind))]
    shares = [[] for _ in alone]
    for rank in range(options.get("world_size", 1)):
        order = sampled(kind, rank=rank, gather=lambda own: [own, own], **options)
        step = 0
        for share in order.shares(0):
            shares[step] += share.indices.tolist() if share.weight else []
            step += share.last
    assert [sorted(own) for own in shares] == alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 3, 8])
def test_a_restored_sampler_continues_behind_the_batches_that_were_trained_on(kind, step):
    order = sampled(kind)
    whole = [facts.batches(order, epoch) for epoch in range(3)]
    step = min(step, order.num_steps)
    first = sampled(kind)
    facts.batches(first, 0)
    reader = first.shares(1)
    ahead = [next(reader) for _ in range(min(step + 2, order.num_steps))]  # as a loader reads ahead
    assert ahead
    place = (2, 0) if step == order.num_steps else (1, step)
    state = first.sampler.state(*place)
    second = sampled(kind)
    second.sampler.load(state, *place)
    assert facts.batches(second, *place) == whole[place[0]][place[1] :]
    if place == (1, step):
        assert facts.batches(second, 2) == whole[2]


def test_a_sampler_that_cannot_repeat_an_epoch_is_refused_inside_it():
    first = sampled("Forgetful")
    reader = first.shares(0)
    _ = [next(reader) for _ in range(3)]
    state = first.sampler.state(0, 2)
    second = sampled("Forgetful", arguments={"seed": 4})
    with pytest.raises(errors.CheckpointError, match=r"K106.*other batches in epoch 1.*set_epoch"):
        second.sampler.load(state, 0, 2)
    second.sampler.load(None, 0, 2)


def test_a_sampler_is_asked_when_a_batch_is_read_and_may_learn_meanwhile():
    order = sampled("Growing")
    sampler = order.sampler.sampler
    read = []
    for share in order.shares(0):
        read.append(share.indices.tolist())
        sampler.learned[0] += 1
        if len(read) == 3:
            state = order.sampler.state(0, 3)
    assert read == [[first, 1, 2, 3] for first in range(4)]
    again = sampled("Growing")
    again.sampler.load(state, 0, 3)
    assert facts.batches(again, 0, 3) == [[3, 1, 2, 3]]
    order = sampled("Pairs")
    assert [order.sampler.sampler.asked for _ in order.shares(1)] == [2, 3, 4, 5, 6]


def test_states_before_the_newest_step_are_forgotten():
    order = sampled("Remembered")
    for number, _ in enumerate(order.shares(0)):
        order.sampler.forget(0, number)
    assert len(order.sampler._history) <= 3


def test_each_time_that_a_record_comes_it_has_a_key_of_its_own():
    shares = [share for step in facts.steps_of(sampled("Pairs")) for share in step]
    keys = torch.cat([share.keys for share in shares])
    assert len(keys.unique()) == len(keys)
    assert torch.cat([share.indices for share in shares]).equal(keys % 30)
    resumed = [share.keys for step in facts.steps_of(sampled("Pairs"), 0, 2) for share in step]
    assert torch.cat(resumed).equal(keys[12:])


def test_a_sampler_numbers_the_records_in_use():
    order = replace(Order(30, 6, 3, shuffle=True), selected=torch.arange(0, 30, 2))
    make = partial(samplers.Pairs)
    choice = SamplerOrder(make, ("labels", "seed"), "Pairs")
    drawn = facts.batches(choice.order(order, facts.Facts(LABELS), training=True))
    assert all(index % 2 == 0 for own in drawn for index in own)
    for own in drawn:  # pairs of one class
        assert (LABELS[own[::2]] == LABELS[own[1::2]]).all()
    assert choice.order(order, facts.Facts(LABELS), training=False) is order


def test_ranks_that_are_given_other_batches_end():
    with pytest.raises(errors.DistributedError, match=r"P107\]: rank 1: .*OfRank gives other"):
        sampled("OfRank", gather=lambda own: [own, own + 1], world_size=2)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("Pairs", {"shuffle": False}, "shuffle = false, last = short: are not used"),
        ("Pairs", {"last": "drop"}, "shuffle = true, last = drop: are not used"),
        ("Global", {"last": "wrap"}, "shuffle = true, last = wrap: are not used"),
        ("Pairs", {"batch_size": 8}, r"batch_size = 8: .* batches of 6 records; set batch_size=6"),
    ],
    ids=["shuffle", "drop", "wrap", "size"],
)
def test_what_a_sampler_would_ignore_is_refused(kind, options, words):
    with pytest.raises(errors.ConfigError, match=rf"C208\]: {words}"):
        sampled(kind, **options)


def test_single_records_may_drop_a_short_batch():
    assert sampled("Global", last="drop").num_steps == 7


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([[0, 30]], "names a record that is not there: there are 30"),
        ([[-1, 0]], "names a record that is not there"),
        ([["a"]], "is no list of whole numbers"),
        ([[]], "is no list of whole numbers"),
        ([[0.5]], "is no list of whole numbers"),
        ([], "gives no batch"),
        (3, "not iterable"),
    ],
    ids=["beyond", "negative", "text", "empty", "float", "none", "number"],
)
def test_what_is_no_batch_is_refused(given, words):
    choice = SamplerOrder(lambda: given, (), "mine.Wrong")
    with pytest.raises(errors.DataError, match=rf"D236\]: order = mine.Wrong.*{words}"):
        choice.order(Order(30, 1, shuffle=True), facts.Facts(LABELS), training=True)


def test_a_sampler_that_ends_early_or_raises_is_named():
    order = sampled("Pairs")
    order.sampler.sampler.steps = 2
    with pytest.raises(errors.DataError, match="ended after 2 of 5 batches"):
        facts.batches(order, 1)
    order.sampler.sampler.members = None
    with pytest.raises(errors.UserCodeError, match=r"samplers\.py:\d+: in Pairs.__iter__"):
        facts.batches(order, 2)
