import threading

import pytest
import torch

from framework.contracts.data import MicroBatch
from framework.contracts.loader import LoaderContext, LoaderStats
from framework.data.folder import folder_source
from framework.errors import DataError
from framework.loader import prefetch, stream
from framework.loader.plain import PlainLoader
from framework.measure.clock import HostClock
from tests.conftest import make_context
from tests.contract.cases import jpeg, make_source, micros, plain, write_folder

LOADERS = {
    "plain": lambda context: PlainLoader(True, context=context),
    "prefetch": lambda context: prefetch.PrefetchLoader(2, True, context=context),
    "stream": lambda context: stream.StreamLoader(2, 2, context=context),
}
WAYS = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_kind": "process"}]
every_way = pytest.mark.parametrize("options", WAYS, ids=["here", "threads", "processes"])


class Marks:
    """A clock that notes what is marked."""

    def __init__(self):
        self.names, self.skip, self.lap = [], None, None

    def mark(self, name):
        self.names.append(name)


def unchanged(batch, epoch):
    return dict(batch)


@pytest.fixture(params=LOADERS)
def make(request):
    """Yield a function that makes loaders, which are closed at the end, twice."""
    made = []

    def loader(source=None, augment=unchanged, clock=None, **options):
        source = source or make_source("hdf5", 10, **options)
        context = LoaderContext(source, torch.device("cpu"), augment, clock or HostClock())
        made.append(LOADERS[request.param](context))
        return made[-1]

    yield loader
    for item in made * 2:
        item.close()


def epoch_of(loader, epoch=0, start=0):
    return [(plain(batch), weight, last) for batch, weight, last in loader.epoch(epoch, start)]


@every_way
def test_batches_come_as_the_source_orders_them_from_any_start(make, options):
    loader = make(accumulate=2, batch_size=3, **options)
    assert loader.num_steps == 4
    for epoch in range(2):
        expected = micros(loader.context.source, epoch)
        assert epoch_of(loader, epoch) == expected
        assert sum(last for *_, last in expected) == 4
    assert epoch_of(loader, 1, 1) == expected[2:]
    assert epoch_of(loader, 1, 4) == []


@every_way
def test_epochs_are_the_same_if_they_are_expected(make, options):
    loader = make(accumulate=2, batch_size=3, **options)
    loader.expect(0, 2, 2 + 4 + 1)
    assert epoch_of(loader, 0, 2) == micros(loader.context.source, 0)[4:]
    assert epoch_of(loader, 1) == micros(loader.context.source, 1)
    assert epoch_of(loader, 2) == micros(loader.context.source, 2)[:2]  # of the last step
    loader.expect(3, 0, 8)
    assert epoch_of(loader, 5, 3) == micros(loader.context.source, 5)[6:]  # another


def test_micro_batches_come_on_the_device_and_notes_are_lines(make):
    loader = make()
    for micro in loader.epoch(0):
        assert isinstance(micro, MicroBatch)
        assert {tensor.device.type for tensor in micro.batch.values()} == {"cpu"}
    assert all(isinstance(note, str) and "\n" not in note for note in loader.notes)


def test_every_batch_is_augmented_once_with_its_epoch(make):
    seen = []

    def augment(batch, epoch):
        seen.append((epoch, batch["index"].tolist()))
        return {**batch, "image": batch["image"].float() + epoch}

    loader = make(augment=augment)
    result = epoch_of(loader, 5)
    expected = micros(loader.context.source, 5)
    assert seen == [(5, batch["index"]) for batch, *_ in expected]
    assert result[0][0]["image"] == (torch.tensor(expected[0][0]["image"]).float() + 5).tolist()


def test_wait_and_copy_are_marked_and_timed_for_every_batch(make):
    clock = Marks()
    for number, _ in enumerate(make(clock=clock).epoch(0)):
        assert clock.names == ["wait", "copy"] * (number + 1)
    clock = HostClock()
    list(make(clock=clock).epoch(0))
    assert set(clock.spans()) == {"wait", "copy"}


def test_an_error_of_the_source_surfaces_where_its_batch_would_have_come(make):
    images = [jpeg(number) for number in range(12)]
    images[9] = b"text"
    source = folder_source(write_folder("in", images), context=make_context(shuffle=False))
    batches = make(source).epoch(0)
    assert [next(batches).batch["index"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(DataError, match=r"D106.*in/c/009\.jpg"):
        next(batches)
    assert "paceline-prefetch" not in [thread.name for thread in threading.enumerate()]


def test_an_error_of_the_augmentation_surfaces(make):
    def augment(batch, epoch):
        raise LookupError("a user's mistake")

    with pytest.raises(LookupError, match="a user's mistake"):
        list(make(augment=augment).epoch(0))


@every_way
def test_an_epoch_that_ends_early_leaves_nothing_and_the_next_is_whole(make, options):
    loader = make(make_source("hdf5", 40, **options))
    before = threading.active_count()
    loader.epoch(0).close()
    assert threading.active_count() == before
    batches = loader.epoch(0)
    next(batches)
    batches.close()
    batches = loader.epoch(0)
    next(batches)
    with pytest.raises(ZeroDivisionError):  # an error of the step
        batches.throw(ZeroDivisionError)
    assert options.get("worker_kind") or threading.active_count() == before
    assert epoch_of(loader, 1) == micros(loader.context.source, 1)


@every_way
def test_stats_are_of_the_time_since_they_were_asked_for(make, options):
    loader = make(make_source("folder", 20, **options))
    before = loader.stats()
    assert before == LoaderStats({}, None, before.depth)
    epoch_of(loader)
    stages_s, ready, depth, _ = loader.stats()
    assert set(stages_s) == {"read", "decode", "transform", "collate"}
    assert depth == before.depth
    assert ready is None if depth == 0 else 0.0 <= ready <= depth
    assert loader.stats() == before
