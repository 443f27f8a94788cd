"""A user's own DataLoader, or any iterable of batches."""

from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from framework.data.dataloader import loader_source
from framework.errors import ConfigError, DataError, PacelineError, UserCodeError
from framework.system.rng import generator_state
from framework.transform.resize import Resize
from tests.conftest import make_context
from tests.data.own_items import Broken, Endless, make_loader, pairs

NAMES = ["wave", "label"]


@pytest.fixture
def make():
    """Yield a function that makes sources, which are closed at the end."""
    made = []

    def source(data, names=NAMES, num_batches=None, **options):
        unset = {"batch_size": 0, "num_workers": None, "worker_kind": None}
        context = make_context(**{**unset, **options})
        made.append(loader_source(data, names, num_batches, context=context))
        return made[-1]

    yield source
    for item in made:
        item.close()


def epoch_of(source, epoch=0, start=0):
    return [
        (batch["wave"][:, 0].tolist(), batch["index"].tolist(), weight, last)
        for batch, weight, last in source.batches(epoch, start)
    ]


def test_batches_come_as_they_are(make):
    numbers = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    expected = [(part, part, 1.0, True) for part in numbers]
    assert epoch_of(make(make_loader(10, shuffle=False))) == expected


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}],
    ids=["here", "workers", "persistent"],
)
def test_a_loader_that_shuffles_repeats_its_order_and_moves_no_generator(make, options):
    before = generator_state(torch.device("cpu"))
    source = make(make_loader(**options))
    first = epoch_of(source, 3)
    assert epoch_of(source, 4) != first
    assert epoch_of(source, 3) == first
    assert sorted(chain(*(waves for waves, *_ in first))) == list(range(20))
    assert torch.equal(generator_state(torch.device("cpu")), before)


def test_a_resumed_epoch_drops_the_batches_before(make):
    source = make(make_loader(), accumulate=2)
    assert epoch_of(source, 1, start=1) == epoch_of(source, 1)[2:]


@pytest.mark.parametrize(
    ("count", "passes"),
    [
        (11, [(0.5, False), (0.5, True), (1.0, True)]),
        (7, [(4 / 7, False), (3 / 7, True)]),
        (20, [(0.5, False), (0.5, True)] * 2 + [(1.0, True)]),
    ],
)
def test_a_pass_weighs_the_records_that_it_holds(make, count, passes):
    source = make(make_loader(count), accumulate=2)
    assert [(weight, last) for *_, weight, last in epoch_of(source)] == passes
    assert source.order.num_steps == sum(last for _, last in passes)
    assert source.order.batch_size == 8


def test_ranks_shuffle_and_number_their_records_apart(make):
    ranks = [epoch_of(make(make_loader(), rank=rank, world_size=2)) for rank in range(2)]
    assert ranks[0][0][0] != ranks[1][0][0]
    numbers = [index for rank in ranks for _, indices, *_ in rank for index in indices]
    assert sorted(numbers) == list(range(40))


def test_a_sampler_gets_to_know_the_epoch(make):
    sampler = DistributedSampler(pairs(), num_replicas=1, rank=0)
    source = make(DataLoader(pairs(), batch_size=4, sampler=sampler))
    assert epoch_of(source, 0) != epoch_of(source, 7)
    assert sampler.epoch == 7


def test_a_stream_has_the_given_number_of_batches(make):
    source = make(DataLoader(Endless(), batch_size=4), num_batches=3)
    assert [waves for waves, *_ in epoch_of(source)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    with pytest.raises(DataError, match=r"D234\]: data.train = .*ended after 5 of 6 batches"):
        epoch_of(make(make_loader(20), num_batches=6))


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (DataLoader(Endless(), batch_size=4), {}, r"C235\]: data.num_batches = null: "),
        (5, {}, r"C234\]: data.train = .*no __iter__"),
        (iter([]), {}, r"C234\]: data.train = .*only once"),
        ((n for n in ()), {}, r"C234\]: data.train = .*only once"),
        ([None] * 2, {}, "D230"),
        ([{"x": "text"}] * 2, {}, r"D235.*batch 0 of list: has no number of records"),
        ([{"x": torch.tensor(1)}] * 2, {}, "D235"),
        ([], {"num_batches": 2}, r"D109\]: data.train = list: has no batches"),
    ],
    ids=["stream", "number", "iterator", "generator", "none", "texts", "scalars", "empty"],
)
def test_data_that_are_no_batches_are_refused(make, data, options, words):
    with pytest.raises(PacelineError, match=words):
        make(data, None, **options)


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("workers.num = 2", {"num_workers": 2}),
        ("workers.kind = process", {"worker_kind": "process"}),
        ("limit = 5", {"limit": 5}),
        ("order.block_records = 2", {"block": 2}),
        ("last = drop", {"last": "drop"}),
        ("transform", {"transform": Resize([4, 4], True, True)}),
    ],
    ids=["num", "kind", "limit", "block", "last", "transform"],
)
def test_settings_without_effect_are_refused(make, key, options):
    with pytest.raises(ConfigError, match=rf"C174\]: {key}"):
        make(make_loader(), **options)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_names_the_user_s_line(make, num_workers):
    source = make(DataLoader(Broken(), batch_size=4, num_workers=num_workers), None)
    words = r"U100\]: .*own_items.py:\d+: in \S*__getitem__: LookupError: no such clip"
    with pytest.raises(UserCodeError, match=words):
        list(source.batches(0))
