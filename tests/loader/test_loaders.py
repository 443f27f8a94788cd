"""Loaders on the host: what each does beyond the contract, and the queue between two threads."""

import threading
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import torch

from framework.contracts import class_labels, data
from framework.contracts.loader import LoaderContext
from framework.errors import DataError
from framework.loader.plain import PlainLoader
from framework.loader.prefetch import Ahead, Occupancy, PrefetchLoader
from framework.loader.stream import StreamLoader
from framework.measure.clock import HostClock
from tests.contract.cases import make_source

CPU = torch.device("cpu")


def context_of(source, augment=lambda batch, _: batch):
    return LoaderContext(source, CPU, augment, HostClock())


def wait_until(condition):
    while not condition():
        threading.Event().wait(0.001)


class Watched(data.Source):
    """A real source that notes which threads made its batches."""

    starts_processes = False

    def __init__(self, count):
        self.source = make_source("hdf5", count)
        self.order = self.source.order
        self.stages = self.source.stages
        self.close = self.source.close
        self.made = []

    def batches(self, epoch, start=0):
        for micro in self.source.batches(epoch, start):
            self.made.append(threading.current_thread().name)
            yield data.MicroBatch(*micro)


@pytest.fixture
def watched():
    source = Watched(80)
    yield source
    source.close()


def test_plain_does_everything_in_the_caller_s_thread_and_has_no_queue():
    threads = []

    def augment(batch, epoch):
        threads.append((threading.get_ident(), threading.active_count()))
        return batch

    here = threading.get_ident(), threading.active_count()
    loader = PlainLoader(True, context=context_of(make_source("hdf5", 10), augment))
    batches = [micro.batch for micro in loader.epoch(0)]
    assert threads == [here] * 3
    assert not any(tensor.is_pinned() for batch in batches for tensor in batch.values())
    assert loader.stats()[1:3] == (None, 0)
    loader.close()
    assert loader.context.source.store._mapped is None


@pytest.mark.parametrize(
    "make",
    [partial(PlainLoader, False), partial(PrefetchLoader, 1, False), partial(StreamLoader, 1, 1)],
    ids=["plain", "prefetch", "stream"],
)
def test_a_loader_refuses_a_label_of_no_class(make):
    check = class_labels.LabelCheck("data.train")
    context = replace(context_of(make_source("hdf5", 10)), labels=check)
    loader = make(context=context)
    assert len(list(loader.epoch(0))) == 3  # nothing is known of the classes
    check.allowed = class_labels.LabelRange("label", 1)
    with pytest.raises(DataError, match="D195"):
        list(loader.epoch(0))
    loader.close()


@pytest.mark.parametrize("depth", [1, 3])
def test_prefetch_makes_batches_in_another_thread_and_not_more_than_its_depth(watched, depth):
    loader = PrefetchLoader(depth, True, context=context_of(watched))
    assert watched.made == []
    for step, micro in enumerate(loader.epoch(0)):
        if step < 19:  # the next one is made meanwhile
            wait_until(lambda least=step + 2: len(watched.made) >= least)
        assert len(watched.made) <= step + 1 + depth + 1  # taken, queued, in hand
        assert not any(tensor.is_pinned() for tensor in micro.batch.values())
    assert set(watched.made) == {"paceline-prefetch"}


class Following(Watched):
    """A source that reads on, and notes the epoch of each batch that it has made."""

    def __init__(self, reads_on=True, bad_epoch=None, starts_processes=False):
        super().__init__(16)  # four steps
        self.reads_on = reads_on
        self.starts_processes = starts_processes
        self.is_replaced = False
        self.bad_epoch = bad_epoch

    def check(self):
        if self.is_replaced:
            raise DataError(117, "x", "was replaced", "begin a new run")

    def stream(self, epoch, start, steps):
        pairs = self.order.shares_on(epoch, start, steps)
        batches = self.source.stream(epoch, start, steps)
        for (number, _), micro in zip(pairs, batches, strict=True):
            if number == self.bad_epoch:
                raise DataError(106, "x", "is damaged", "correct it")
            self.made.append(number)
            yield micro

    def batches(self, epoch, start=0):
        return self.stream(epoch, start, self.order.num_steps - start)


@pytest.fixture
def following():
    """Yield a function that makes a loader over such a source, and close it at the end."""
    made = []

    def loader(**options):
        made.append(PrefetchLoader(2, True, context=context_of(Following(**options))))
        return made[-1], made[-1].context.source.made

    yield loader
    for item in made:
        item.close()


def test_the_next_epoch_is_read_before_its_turn_but_a_few_batches(following):
    loader, made = following()
    loader.expect(0, 0, 12)
    list(loader.epoch(0))
    wait_until(lambda: len(made) == 4 + 3)  # two in the queue, and one in the thread's hand
    assert made == [0] * 4 + [1] * 3
    assert [micro.batch["index"].tolist() for micro in loader.epoch(1)] == [
        micro.batch["index"].tolist() for micro in loader.context.source.source.batches(1)
    ]


@pytest.mark.parametrize("steps", [3, 4, 6])
def test_nothing_is_read_behind_the_last_step(following, steps):
    loader, made = following()
    loader.expect(0, 0, steps)
    taken = list(loader.epoch(0))
    if steps > 4:
        taken += loader.epoch(1)
    assert len(taken) == len(made) == steps


def test_an_error_of_the_next_epoch_waits_for_its_turn(following):
    loader, _ = following(bad_epoch=1)
    loader.expect(0, 0, 8)
    assert len(list(loader.epoch(0))) == 4
    with pytest.raises(DataError, match="D106"):
        next(loader.epoch(1))


def test_processes_start_where_the_first_batch_is_awaited(following):
    loader, made = following(starts_processes=True)
    loader.expect(0, 0, 8)
    assert loader._opened is None  # forked beside a step, they would inherit its locks
    list(loader.epoch(0))
    wait_until(lambda: len(made) == 4 + 3)


def test_a_file_that_is_replaced_is_noticed_before_the_first_step_with_its_records(following):
    loader, made = following()
    loader.expect(0, 0, 8)
    list(loader.epoch(0))
    wait_until(lambda: len(made) == 4 + 3)
    loader.context.source.is_replaced = True
    with pytest.raises(DataError, match="D117"):
        next(loader.epoch(1))


def test_a_users_loader_is_not_touched_before_its_turn(following):
    loader, made = following(reads_on=False)
    loader.expect(0, 0, 8)
    assert loader._opened is None
    list(loader.epoch(0))
    assert (made, loader._opened) == ([0] * 4, None)


def test_what_is_no_longer_expected_is_dropped(following):
    loader, made = following()
    loader.expect(0, 0, 8)
    wait_until(lambda: made)
    loader.expect(0, 0, 0)
    assert "paceline-prefetch" not in [thread.name for thread in threading.enumerate()]
    assert len(list(loader.epoch(1, 2))) == 2


def test_stats_tell_how_many_batches_were_ready(watched):
    loader = PrefetchLoader(3, True, context=context_of(watched))
    batches = loader.epoch(0)
    next(batches)  # starts the thread
    loader.stats()
    for taken in range(1, 5):
        # three are in the queue, and one in the thread's hand
        wait_until(lambda least=taken + 4: len(watched.made) >= least)
        next(batches)
    stages_s, ready, depth, _ = loader.stats()
    assert (set(stages_s), ready, depth) == ({"read"}, 3.0, 3)
    assert loader.stats().ready is None
    batches.close()


def ahead_of(produce, depth=2, occupancy=None):
    return closing(Ahead(produce, depth, occupancy or Occupancy()))


def broken(good, error):
    yield from range(good)
    raise error


def test_an_item_is_ready_once_the_producer_has_made_it():
    may_produce = threading.Event()

    def produce():
        may_produce.wait()
        yield 1

    with ahead_of(produce()) as ahead:
        assert not ahead.is_ready
        may_produce.set()
        assert next(iter(ahead)) == 1
        wait_until(lambda: ahead.is_ready)  # the end


@pytest.mark.parametrize("good", [0, 5])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_error_is_raised_where_its_item_would_have_come(good, error):
    with ahead_of(broken(good, error)) as ahead:
        items = iter(ahead)
        assert [next(items) for _ in range(good)] == list(range(good))
        with pytest.raises(error):
            next(items)


def test_an_early_close_closes_the_producer_in_its_thread_and_ends_it():
    produced, closed = [], []

    def produce():
        try:
            for number in range(10**9):
                produced.append(number)
                yield number
        finally:
            closed.append(threading.current_thread().name)

    ahead = Ahead(produce(), 2, Occupancy())
    wait_until(lambda: produced)  # a generator that never started has nothing to close
    ahead.close()
    ahead.close()
    assert closed == ["paceline-prefetch"]
    assert not ahead._thread.is_alive()


def test_occupancy_is_the_mean_since_it_was_taken():
    occupancy = Occupancy()
    for num_ready in (0, 1, 5):
        occupancy.count(num_ready)
    assert occupancy.take() == 2.0
    occupancy.count(3)
    assert (occupancy.take(), occupancy.take()) == (3.0, None)
