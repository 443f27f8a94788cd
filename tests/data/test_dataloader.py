"""A user's own DataLoader, or any iterable of batches."""

from functools import partial
from itertools import chain, islice

import pytest
import torch
from torch.utils.data import DataLoader

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


LOADERS = {
    "shuffled": make_loader,
    "generator": lambda: make_loader(generator=torch.Generator().manual_seed(3)),
    "workers": lambda: make_loader(num_workers=1),
    "lazy": lambda: DataLoader(pairs(), batch_sampler=Drawn(torch.randperm)),
    "ready": lambda: DataLoader(Lists(), batch_size=None, sampler=Drawn(torch.randperm)),
}


@pytest.mark.parametrize(
    ("num_parts", "options"),
    [(2, {}), (5, {}), (3, {"accumulate": 2}), (4, {"virtual_ranks": 4})],
    ids=["two", "more than records", "accumulated", "virtual"],
)
@pytest.mark.parametrize("kind", LOADERS)
def test_ranks_share_every_batch_of_one_process(make, kind, num_parts, options):
    if kind == "workers" and num_parts > 2:  # a fork for each rank: its threads may hang a worker
        return
    alone = make(LOADERS[kind](), accumulate=options.get("accumulate", 1))
    world_size = num_parts
    if "virtual_ranks" in options:
        world_size = 2
    ranks = [
        make(LOADERS[kind](), rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    assert len({str(source.order.identity) for source in (alone, *ranks)}) == 1
    samples = [source.sample(8) for source in (alone, *ranks)]
    assert len({str((batch["wave"], batch["index"])) for batch in samples}) == 1
    for epoch in (0, 2):
        whole, parts = epoch_of(alone, epoch), [epoch_of(rank, epoch) for rank in ranks]
        if "virtual_ranks" in options:
            parts = [rank[place::2] for place in range(2) for rank in parts]
        assert all(len(part) == len(whole) for part in parts)
        for (waves, indices, weight, _), *shares in zip(whole, *parts, strict=True):
            own = [share for share in shares if share[2]]
            records = {*zip(indices, waves, strict=True)}
            assert {pair for part in own for pair in zip(part[1], part[0], strict=True)} == records
            assert sum(len(share[0]) for share in own) == len(records)
            for share in own:
                expected = len(share[0]) * num_parts / len(records) * weight
                assert share[2] == pytest.approx(expected)


def alike(own):
    """Gather the same from two ranks."""
    return [own, own]


def different(own):
    """Gather two digests that differ, and the same number of batches."""
    return [own, own if len(own) == 1 else own + 1]


READY = [(torch.ones(4, 3), torch.zeros(4))] * 3


def test_ranks_whose_batches_differ_keep_them(make):
    source = make(make_loader(shuffle=False), rank=1, world_size=2, gather=different)
    assert epoch_of(source)[1][:2] == ([4, 5, 6, 7], [9, 11, 13, 15])
    assert source.order.batch_size == 8


@pytest.mark.parametrize(
    ("data", "gather", "words"),
    [
        (DataLoader(Endless(), batch_size=4), alike, "several ranks the same batches"),
        (READY, alike, "several ranks the same batches"),
        (READY, lambda own: [own, own + 1], "the ranks 3, 4 batches"),
    ],
    ids=["stream", "list", "number"],
)
def test_equal_batches_of_ranks_are_refused(make, data, gather, words):
    with pytest.raises(ConfigError, match=rf"C237\]: data.train = .* gives {words}"):
        make(data, num_batches=3, gather=gather, world_size=2)


def test_virtual_ranks_need_batches_that_can_be_cut(make):
    with pytest.raises(ConfigError, match=r"C174\]: parallel.virtual_ranks"):
        make(READY, virtual_ranks=2)


class Drawn:
    """A batch sampler that draws when it is asked, and ends its epoch after the last batch."""

    def __init__(self, permutation):
        self.permutation, self.epoch = permutation, 0

    def __len__(self):
        return 3

    def __iter__(self):
        for size in (6, 6, 3):
            yield (self.permutation(20)[:size] + 20 * self.epoch).remainder(20).tolist()
        self.epoch += 1


class Lists:
    """A Dataset that takes lists of indices."""

    def __getitem__(self, indices):
        numbers = torch.tensor(indices)
        return numbers.float()[:, None].expand(-1, 3), numbers % 2


class Simulator:
    """Batches that differ whenever they are asked for."""

    def __init__(self):
        self.number = 0

    def __iter__(self):
        while True:
            self.number += 1
            yield torch.full((2, 3), float(self.number)), torch.zeros(2)


def own_generator():
    return torch.Generator().manual_seed(7)


OWN = {
    "loader": lambda: make_loader(generator=own_generator()),
    "workers": lambda: make_loader(
        generator=own_generator(), num_workers=2, persistent_workers=True
    ),
    "sampler": lambda: DataLoader(
        pairs(), batch_sampler=Drawn(partial(torch.randperm, generator=own_generator()))
    ),
    "epochs": lambda: DataLoader(pairs(), batch_sampler=Drawn(torch.arange)),
    "simulator": Simulator,
}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("training", [True, False], ids=["train", "val"])
def test_a_generator_of_the_users_gives_what_a_plain_loop_gets(make, kind, training):
    num_batches = None
    if kind == "simulator":
        num_batches = 3
    source = make(OWN[kind](), num_batches=num_batches, training=training)
    for count in (1, 8, 3):
        source.sample(count)["wave"].zero_()  # the trial of a model may do so
    loader = OWN[kind]()
    for epoch in range(3):
        expected = [wave[:, 0].tolist() for wave, _ in islice(loader, num_batches)]
        assert [waves for waves, *_ in epoch_of(source, epoch * training)] == expected


class Reused:
    """A batch sampler that yields one list again and again, and counts how often it was asked."""

    asked = 0

    def __len__(self):
        return 5

    def __iter__(self):
        indices = []
        for first in range(0, 20, 4):
            self.asked += 1
            indices[:] = range(first, first + 4)
            yield indices


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_sampler_may_reuse_its_list(make, world_size):
    source = make(DataLoader(pairs(), batch_sampler=Reused()), world_size=world_size)
    expected = [[*range(first, first + 4, world_size)] for first in range(0, 20, 4)]
    assert [waves for waves, *_ in epoch_of(source)] == expected


def test_a_sampler_is_asked_when_a_batch_is_needed(make):
    sampler = Reused()
    batches = make(DataLoader(pairs(), batch_sampler=sampler)).batches(0)
    assert [sampler.asked for _ in batches] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("batch_size", "accumulate"), [(4, 1), (8, 2), (0, 3)])
def test_a_batch_size_is_that_of_a_step(make, batch_size, accumulate):
    source = make(make_loader(), batch_size=batch_size, accumulate=accumulate)
    assert source.order.batch_size == 4 * accumulate
    with pytest.raises(ConfigError, match=r"C174\]: batch_size = 5, .* a step takes 4 records"):
        make(make_loader(), batch_size=5)


def test_a_stream_has_the_given_number_of_batches(make):
    source = make(DataLoader(Endless(), batch_size=4), num_batches=3)
    assert [waves for waves, *_ in epoch_of(source)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    with pytest.raises(ConfigError, match=r"C235\]: data.num_batches = 6: .* has 5 batches"):
        make(make_loader(20), num_batches=6)


def test_a_loader_that_ends_too_early_is_refused(make):
    class Short(list):
        def __len__(self):
            return 3

    with pytest.raises(DataError, match=r"D234\]: data.train = .*ended after 2 of 3 batches"):
        epoch_of(make(Short(READY[:2])))


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (DataLoader(Endless(), batch_size=4), {}, r"C235\]: data.num_batches = null: "),
        (5, {}, r"C234\]: data.train = .*no __iter__"),
        (iter([]), {}, r"C234\]: data.train = .*only once"),
        ([None] * 2, {}, "D230"),
        ([{"x": "text"}] * 2, {}, r"D235.*batch 0 of list: has no number of records"),
        ([], {"num_batches": 2}, r"D109\]: data.train = list: has no batches"),
    ],
    ids=["stream", "number", "iterator", "none", "texts", "empty"],
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
