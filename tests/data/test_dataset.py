import os
import resource
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import pytest
import torch
from torch.utils.data import Subset

from framework.contracts.records import Field, notes_of
from framework.data.dataset import classes_of, dataset_source
from framework.errors import ConfigError, DataError, UserCodeError
from framework.system.rng import generator_state
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize
from tests.conftest import make_context
from tests.contract.cases import plain
from tests.data.own_items import (
    Broken,
    Clips,
    Endless,
    Once,
    Restless,
    Seeded,
    Seldom,
    fields,
    make_loader,
)

WAYS = [(0, None), (1, None), (2, None), (2, "process")]
METHODS = ["fork", "forkserver", "spawn"]


@pytest.fixture
def make():
    """Yield a function that makes sources, which are closed at the end."""
    made = []

    def source(data, names=None, join=None, ragged=None, **options):
        context = make_context(**{"num_workers": 0, "worker_kind": None, **options})
        made.append(dataset_source(data, names, join, ragged, context=context))
        return made[-1]

    yield source
    for item in made:
        item.close()


def waves(source, epoch=0, start=0):
    """Return the indices, waves and texts of every batch, in the order of the epoch."""
    return [
        (batch["index"].tolist(), batch["wave"].tolist(), batch["text"])
        for batch, *_ in source.batches(epoch, start)
    ]


def in_thread(source, epoch):
    """Read an epoch's waves in a thread, as a loader does.

    Return a finished Future, which has the waves or the exception.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(waves, source, epoch)


@pytest.mark.parametrize(("num", "kind"), WAYS)
def test_random_items_are_the_same_for_every_number_of_workers(make, num, kind):
    alone = make(Clips())
    expected = [waves(alone, epoch) for epoch in range(2)]
    source = make(Clips(), num_workers=num, worker_kind=kind)
    assert [waves(source, epoch) for epoch in range(2)] == expected
    assert expected[0] != expected[1]


@pytest.mark.parametrize("method", METHODS)
def test_random_items_are_the_same_however_processes_start(make, method):
    source = make(Clips(), num_workers=2, start_method=method)
    assert waves(source, 1) == waves(make(Clips()), 1)


def test_ranks_together_have_the_items_of_a_single_one(make):
    alone = {
        index: wave
        for batch in waves(make(Clips()))
        for index, wave in zip(*batch[:2], strict=True)
    }
    ranks = [make(Clips(), rank=rank, world_size=2) for rank in range(2)]
    together = [
        pair for rank in ranks for batch in waves(rank) for pair in zip(*batch[:2], strict=True)
    ]
    assert dict(together) == alone


@pytest.mark.parametrize("num", [0, 2])
def test_a_resumed_epoch_has_the_items_of_the_whole_one(make, num):
    source = make(Clips(), num_workers=num)
    assert waves(source, 3, start=2) == waves(source, 3)[2:]


def test_the_generators_of_the_step_stay_as_they_are(make):
    torch.manual_seed(3)
    before = generator_state(torch.device("cpu"))
    for num in (0, 2):
        waves(make(Clips(), num_workers=num))
    assert torch.equal(generator_state(torch.device("cpu")), before)


def test_a_loaders_thread_leaves_random_items_to_a_process(make):
    source = make(Clips())
    before = generator_state(torch.device("cpu"))
    result = in_thread(source, 1).result()
    assert torch.equal(generator_state(torch.device("cpu")), before)
    assert result == waves(source, 1)
    assert "process of its own" in " ".join(notes_of(source))


def test_threads_read_items_that_draw_nothing(make):
    source = make(Clips(draws=False), num_workers=2, worker_kind="thread")
    assert waves(source) == waves(make(Clips(draws=False)))
    assert not notes_of(source)


def test_a_rare_item_that_draws_is_the_same_beside_the_step(make):
    source = make(Seldom())
    assert source.draws
    before = generator_state(torch.device("cpu"))
    assert in_thread(source, 1).result() == waves(source, 1)
    assert torch.equal(generator_state(torch.device("cpu")), before)


@pytest.mark.parametrize(("num", "where"), [(0, "workers.num = 0"), (2, "workers.kind = thread")])
def test_an_item_that_draws_unforeseen_ends_what_threads_read(make, monkeypatch, num, where):
    monkeypatch.setattr("framework.data.dataset.MOST_TRIED", 2)
    error = in_thread(make(Seldom(), num_workers=num, worker_kind="thread"), 0).exception()
    assert isinstance(error, ConfigError)
    assert error.args[:2] == (230, where)


@pytest.mark.parametrize("num", [0, 2])
def test_processes_read_on_if_only_the_step_draws(make, monkeypatch, num):
    source = make(Clips(draws=False), num_workers=num, worker_kind="thread")
    expected = waves(make(Clips(draws=False)), 1)
    in_step = count()
    monkeypatch.setattr("framework.data.item_reader.num_restored", lambda: next(in_step))
    assert in_thread(source, 1).result() == expected
    assert in_thread(source, 1).result() == expected


def test_an_unreadable_record_between_is_no_matter_of_the_trial(make):
    assert not make(Broken(draws=False), num_workers=2, worker_kind="thread").draws


@pytest.mark.parametrize("dataset", [Clips(), Seeded(), Seldom()])
def test_threads_are_refused_for_items_that_draw(make, dataset):
    with pytest.raises(ConfigError, match=r"C230\]: workers.kind = thread: .*draw random numbers"):
        make(dataset, num_workers=2, worker_kind="thread")


def test_a_generator_of_its_own_is_noted(make):
    assert "changes from read to read" in " ".join(notes_of(make(Restless())))
    assert not notes_of(make(Clips(), num_workers=2))


def test_the_first_item_describes_the_data(make):
    manifest = make(Clips()).manifest
    assert manifest.fields == {"wave": Field("float32", (3,)), "label": Field("int64", ())}
    assert (manifest.num_records, manifest.classes) == (20, ["low", "high"])
    assert manifest.source == "dataset tests.data.own_items.Clips"


def test_classes_of_a_subset_are_those_of_the_whole():
    assert classes_of(Subset(Subset(Clips(), range(9)), range(3))) == ["low", "high"]
    assert classes_of([1, 2]) == []


@pytest.mark.parametrize("num", [0, 2])
def test_texts_are_carried(make, num):
    source = make(Clips(), num_workers=num, shuffle=False)
    assert next(source.batches(0)).batch["text"] == [f"clip {number}" for number in range(4)]


@pytest.mark.parametrize("num", [0, 2])
def test_a_collate_of_the_users_makes_the_batch(make, num):
    source = make(Clips(), None, partial(fields), num_workers=num)
    batch = next(source.batches(0)).batch
    assert (sorted(batch), batch["n"]) == (["index", "n", "x"], 4)
    assert source.manifest.fields == {"x": Field("float32", (3,))}


@pytest.mark.parametrize("way", ["pad", "nested", "list"])
@pytest.mark.parametrize("num", [0, 2])
def test_arrays_of_different_lengths_are_put_together_whoever_reads(make, num, way):
    items = [{"x": torch.full((number % 3, 2), number)} for number in range(8)]
    source = make(items, ragged=["x"], collate=way, num_workers=num, shuffle=False)
    batch = next(source.batches(0)).batch
    lengths = batch.get("x_length", [0, 1, 2, 0])
    rows = [part[:length].tolist() for part, length in zip(batch["x"], lengths, strict=True)]
    assert rows == [item["x"].tolist() for item in items[:4]]
    assert source.manifest.fields == {"x": Field("int64", (None, 2))}


def test_ragged_fields_beside_a_collate_are_refused(make):
    with pytest.raises(ConfigError, match=r"C232\]: data.ragged = \['wave'\], data.collate"):
        make(Clips(), None, fields, ragged=["wave"])


def noisy(items):
    return {"x": torch.stack([item["wave"] for item in items]) + torch.rand(3)}


def test_a_collate_that_draws_needs_processes_too(make):
    steady = Clips(draws=False)
    with pytest.raises(ConfigError, match="C230"):
        make(steady, None, noisy, num_workers=2, worker_kind="thread")
    results = []
    for num in (0, 2):
        source = make(steady, None, noisy, num_workers=num)
        results.append([batch["x"].tolist() for batch, *_ in source.batches(1)])
    assert results[0] == results[1]


def shuffled(items):
    order = torch.randperm(len(items))  # draws nothing for a single item
    return {"x": torch.stack([items[place]["wave"] for place in order.tolist()])}


def test_a_collate_that_draws_for_two_records_is_known(make):
    assert make(Clips(draws=False), None, shuffled).draws


def test_a_list_of_tuples_is_a_dataset(make):
    source = make([(1.0, 2), (3.0, 4)], ["a", "b"], batch_size=2, shuffle=False)
    assert [plain(batch) for batch, *_ in source.batches(0)] == [
        {"index": [0, 1], "a": [1.0, 3.0], "b": [2, 4]}
    ]


@pytest.mark.parametrize("data", [Endless(), make_loader(), 5, "mine.Clips", {1: 2}.keys()])
def test_what_has_no_records_by_number_is_refused(make, data):
    with pytest.raises(ConfigError, match=r"C231\]: data.train = .*choose data=dataloader"):
        make(data)


class Unsized:
    def __getitem__(self, index):
        return {}


def test_a_dataset_without_a_length_is_refused(make):
    with pytest.raises(ConfigError, match=r"C231\]: data.val = .*Unsized: .*__len__"):
        make(Unsized(), training=False)


def test_a_length_that_cannot_be_known_names_the_users_line(make):
    with pytest.raises(
        UserCodeError, match=r"own_items.py:\d+: in Once.__len__: OSError: no folder"
    ):
        make(Once())


def test_an_empty_dataset_is_refused(make):
    with pytest.raises(DataError, match=r"D109\]: builtins.list|D109\]: list: has no records"):
        make([])


def test_an_item_that_is_none_is_refused_before_the_first_step(make):
    with pytest.raises(DataError, match=r"D230\]: record 0 of list: is a NoneType"):
        make([None, None])


@pytest.mark.parametrize("num", [0, 2])
def test_an_exception_names_line_and_record_whoever_reads(make, num):
    source = make(Broken(), num_workers=num, shuffle=False)
    words = (
        r"U100\]: .*own_items.py:\d+: in Broken.__getitem__: LookupError: no such clip \(record 5"
    )
    with pytest.raises(UserCodeError, match=words):
        list(source.batches(0))


@pytest.mark.parametrize(
    "transform",
    [
        Resize([4, 4], True, True),
        RandomResizedCrop([4, 4], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True),
    ],
)
def test_a_transform_is_refused(make, transform):
    with pytest.raises(ConfigError, match=r"C174\]: transform: "):
        make(Clips(), transform=transform)


@pytest.fixture
def few_files():
    """Let this process and its children open only a few more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_small_tensors_pass_from_a_process(make, few_files):
    items = [
        {"parts": {"box": torch.full((n % 3, 4), n), "on": torch.tensor(n % 2 == 0)}, "text": "a"}
        for n in range(200)
    ]
    source = make(items, batch_size=200, num_workers=1, shuffle=False)
    batch = next(source.batches(0)).batch
    for given, passed in zip(items, batch["parts"], strict=True):
        assert given["parts"]["box"].tolist() == passed["box"].tolist()
        assert given["parts"]["on"].tolist() == passed["on"].tolist()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_sent_is_refused_before_processes_start(make, method):
    local = Clips()
    local.change = lambda wave: wave
    with pytest.raises(ConfigError, match=rf"C236\]: workers.start_method = {method}: .*Clips"):
        make(local, num_workers=1, start_method=method)
    assert waves(make(local, num_workers=1, start_method="fork"))
